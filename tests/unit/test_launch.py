"""gpuwise launch: what is written, what is refused, what --go runs."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from hashlib import sha256

import pytest
from click.testing import CliRunner
from tests.launch_samples import Clients, sample_plan

import gpuwise
from gpuwise import api
from gpuwise.cli.main import main
from gpuwise.errors import FileFormatError, GpuwiseError, InputError, JobError, MissingDependencyError, UnsupportedError
from gpuwise.launch.bundle import job_files
from gpuwise.launch.description import check_name, job_name
from gpuwise.launch.folder import read_folder, write_folder
from gpuwise.launch.grace import grace_of, save_s
from gpuwise.launch.target import TARGETS, target
from gpuwise.plan import Plan, load_plan, save_plan


def test_the_folder_has_the_plan_the_script_and_their_digests(tmp_path):
    plan = sample_plan()
    result = gpuwise.launch(plan, to="slurm", output=tmp_path / "out")
    written = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert set(written) == {"plan.toml", "job.sbatch", "launch.toml"}
    assert load_plan(tmp_path / "out" / "plan.toml") == plan
    record = tomllib.loads(written["launch.toml"].decode())
    assert record["files"] == {n: sha256(written[n]).hexdigest() for n in ("plan.toml", "job.sbatch")} == result.digests
    assert record["price"]["usd"] == plan.usd.value
    assert record["forecast"]["hours"] == plan.hours
    assert record["grace"]["grace_s"] == result.grace_s >= result.save_s


def test_the_plan_that_is_written_is_the_file_byte_for_byte(tmp_path):
    path = tmp_path / "mine.toml"
    save_plan(sample_plan(), path)
    path.write_text("# mine\n" + path.read_text())
    gpuwise.launch(path, to="torchrun", output=tmp_path / "out")
    assert (tmp_path / "out" / "plan.toml").read_bytes() == path.read_bytes()


def test_a_launch_replaces_the_one_before_and_leaves_the_run_alone(tmp_path):
    gpuwise.launch(sample_plan(), to="slurm", output=tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log").write_text("steps")
    gpuwise.launch(sample_plan(), to="torchrun", output=tmp_path)
    assert read_folder(tmp_path).target == "torchrun"
    assert (tmp_path / "run" / "log").read_text() == "steps"


def test_a_folder_of_other_things_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(InputError, match="holds files, and no launch"):
        gpuwise.launch(sample_plan(), to="slurm", output=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_launch_cut_short_is_no_launch(tmp_path, monkeypatch):
    from gpuwise.launch import folder as module

    def fails_at_the_second(path, **options):
        calls.append(path)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return whole(path, **options)

    gpuwise.launch(sample_plan(), to="slurm", output=tmp_path)
    calls, whole = [], module.written_whole
    monkeypatch.setattr(module, "written_whole", fails_at_the_second)
    with pytest.raises(InputError, match="No space left"):
        gpuwise.launch(sample_plan(), to="torchrun", output=tmp_path)
    with pytest.raises(FileFormatError, match="holds no launch"):
        read_folder(tmp_path)


@pytest.mark.parametrize("damage", ["changed", "missing", "newer", "no toml", "foreign"])
def test_a_launch_that_is_not_as_it_was_written_does_not_start(tmp_path, damage):
    gpuwise.launch(sample_plan(), to="torchrun", output=tmp_path)
    script, manifest = tmp_path / "launch.sh", tmp_path / "launch.toml"
    if damage == "changed":
        script.write_text(script.read_text() + "\nrm -rf /\n")
    elif damage == "missing":
        script.unlink()
    elif damage == "newer":
        manifest.write_text(manifest.read_text().replace("version = 1", "version = 2"))
    elif damage == "no toml":
        manifest.write_bytes(b"\xff\xfe")
    else:
        manifest.write_text('format = "something"\n')
    with pytest.raises(FileFormatError, match=r"launch|missing"):
        api.start_launch(tmp_path)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("gpt2", "gpt2"),
        ("examples/digits.py:job", "digits-job"),
        ("hf:org/Some_Model", "some-model"),
        ("/a/2net.py:job", "job-2net-job"),
    ],
)
def test_names_of_jobs(text, name):
    assert job_name(text) == name == check_name(name)


@pytest.mark.parametrize("name", ["", "-a", "A", "a b", "a;b", "1a", "a" * 41, "a\nb", "$(x)"])
def test_names_that_no_target_takes_are_refused(name):
    with pytest.raises(InputError, match="is no name of a job"):
        check_name(name)


def test_modules_beside_the_job_travel_and_others_do_not(tmp_path):
    (tmp_path / "net.py").write_text("import json, layers\nfrom parts.head import Head\nfrom parts import tail\n")
    (tmp_path / "layers.py").write_text("def f():\n    import deep\n")
    (tmp_path / "deep.py").write_text("import layers\n")
    (tmp_path / "other.py").write_text("")
    (tmp_path / "parts").mkdir()
    for name in ("__init__", "head", "tail", "unused"):
        (tmp_path / "parts" / f"{name}.py").write_text("")
    argument, files = job_files(replace(sample_plan(), job_argument=f"{tmp_path}/net.py:job"))
    assert argument == "net.py:job"
    assert set(files) == {"net.py", "layers.py", "deep.py", "parts/__init__.py", "parts/head.py", "parts/tail.py"}


def test_included_folders_travel_under_their_names(tmp_path):
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "deep" / "a.txt").write_text("a")
    _, files = job_files(sample_plan(), [str(tmp_path / "data")])
    assert files == {"data/deep/a.txt": b"a"}
    with pytest.raises(InputError, match="no such file"):
        job_files(sample_plan(), [str(tmp_path / "absent")])


def test_a_job_without_a_name_and_files_too_large_are_refused(tmp_path):
    with pytest.raises(JobError, match="made from a Job object"):
        job_files(replace(sample_plan(), job_argument=""))
    with open(tmp_path / "big", "wb") as file:
        file.truncate(17 * 2**20)
    with pytest.raises(InputError, match="over 17 MB"):
        job_files(sample_plan(), [str(tmp_path / "big")])


def with_steps_of(plan: Plan, high_s: float) -> Plan:
    """The plan with steps of this many seconds at most, on a machine with a fast network."""
    step_time = replace(plan.forecast.step_time_s, value=high_s / 2, low=high_s / 4, high=high_s)
    forecast = replace(plan.forecast, step_time_s=step_time)
    return replace(plan, forecast=forecast, offer=replace(plan.offer, network_bytes_per_s=1e10))


def test_a_grace_is_raised_in_the_file_where_a_save_needs_it():
    plan, slow = with_steps_of(sample_plan(), 1.0), with_steps_of(sample_plan(), 100.0)
    assert grace_of(plan, target("torchrun"), None) == (30, ())
    grace_s, notes = grace_of(slow, target("torchrun"), None)
    assert grace_s >= save_s(slow) > 100
    assert [note.kind for note in notes] == ["grace-raised"]


def test_a_grace_shorter_than_a_save_is_refused():
    plan = sample_plan()
    with pytest.raises(InputError, match="is shorter than a save"):
        grace_of(plan, target("slurm"), save_s(plan) - 1)
    assert grace_of(plan, target("slurm"), save_s(plan) + 1)[0] >= save_s(plan)


def test_a_notice_shorter_than_a_save_leaves_only_periodic_checkpoints():
    spot = sample_plan(terms="spot", provider="gcp")
    plan, slow = with_steps_of(spot, 1.0), with_steps_of(spot, 100.0)
    assert "only-periodic-checkpoints" in [note.kind for note in grace_of(slow, target("torchrun"), None)[1]]
    assert "only-periodic-checkpoints" not in [note.kind for note in grace_of(plan, target("torchrun"), None)[1]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"set": ["partitoin=gpu"]}, "unknown setting of slurm 'partitoin'"),
        ({"set": ["partition=gpu\n#SBATCH --wrap=x"]}, "partition is The partition"),
        ({"set": ["partition"]}, "partition is The partition"),
        ({"env": ["1A=x"]}, "is no NAME=VALUE"),
        ({"env": ["A"]}, "is no NAME=VALUE"),
        ({"setup": ["a\nb"]}, "has several lines"),
        ({"restarts": -1}, "out of range"),
        ({"time_limit": "0s"}, "is no time|must be"),
        ({"run": ""}, "is no folder"),
        ({"run": "a\0b"}, "is no folder"),
        ({"install": "-r x"}, "is no package"),
        ({"install": "absent.whl"}, "no such file"),
        ({"image": "--privileged"}, "is no name of an image"),
        ({"image": "a $(x)"}, "is no name of an image"),
        ({"name": "A B"}, "is no name of a job"),
    ],
)
def test_bad_settings_are_named(tmp_path, settings, message):
    with pytest.raises(GpuwiseError, match=message) as caught:
        gpuwise.launch(sample_plan(), to="slurm", output=tmp_path / "out", **settings)
    assert caught.value.exit_code == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (replace(sample_plan(), train_obstacle="it needs PyTorch/XLA"), "it needs PyTorch/XLA"),
        (replace(sample_plan(), count=0.25), "0.25 of a device"),
    ],
)
def test_plans_that_do_not_train_are_not_launched(tmp_path, plan, message):
    with pytest.raises(UnsupportedError, match=message):
        gpuwise.launch(plan, to="slurm", output=tmp_path / "out")


def test_ssh_needs_a_host_for_each_machine_and_a_folder_that_all_see(tmp_path):
    with pytest.raises(InputError, match="ssh needs hosts"):
        gpuwise.launch(sample_plan(), to="ssh", output=tmp_path / "out")
    with pytest.raises(InputError, match="has 1 machine, and hosts names 2"):
        gpuwise.launch(sample_plan(), to="ssh", output=tmp_path / "out", set=["hosts=a,b"])
    with pytest.raises(InputError, match="no folder with a colon"):
        gpuwise.launch(sample_plan(), to="ssh", output=tmp_path / "out", set=["hosts=a"], image="net:1", run="/runs/a:b")
    with pytest.raises(InputError, match="the others cannot see"):
        gpuwise.launch(sample_plan(devices=16, machines=2), to="ssh", output=tmp_path / "out", set=["hosts=a,b"])


def test_several_machines_meet_at_one_that_is_named(tmp_path):
    with pytest.raises(InputError, match="torchrun needs master"):
        gpuwise.launch(sample_plan(devices=16, machines=2), to="torchrun", output=tmp_path / "out")


def test_a_wheel_travels_and_is_installed_from_the_folder(tmp_path):
    wheel = tmp_path / "gpuwise-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    result = gpuwise.launch(sample_plan(job="timm:vit_tiny"), to="torchrun", output=tmp_path / "out", install=str(wheel))
    assert wheel.name in result.digests
    assert f"pip install './{wheel.name}[torch,timm]'" in (tmp_path / "out" / "launch.sh").read_text()


def test_go_hands_the_files_to_the_client(tmp_path, monkeypatch):
    clients = Clients(tmp_path / "clients", "sbatch")
    monkeypatch.setenv("PATH", str(clients.folder))
    monkeypatch.setenv("CALLS", str(tmp_path / "clients" / "calls"))
    result = gpuwise.launch(sample_plan(), to="slurm", output=tmp_path / "out", go=True)
    assert result.exit_code == 0
    assert api.start_launch(tmp_path / "out") == 0
    assert [(call.argv, call.folder) for call in clients.calls()] == [(["job.sbatch"], str(tmp_path / "out"))] * 2


def test_a_client_that_is_not_installed_is_named_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependencyError, match="started with sbatch, which is not installed"):
        gpuwise.launch(sample_plan(), to="slurm", output=tmp_path / "out", go=True)
    assert not (tmp_path / "out").exists()


def test_the_command_line_writes_and_starts(tmp_path, monkeypatch):
    save_plan(sample_plan(), tmp_path / "plan.toml")
    run = CliRunner().invoke
    out = str(tmp_path / "out")
    written = run(main, ["launch", str(tmp_path / "plan.toml"), "--to", "slurm", "-o", out, "--set", "gpu=h100", "--json"])
    assert written.exit_code == 0, written.output
    assert json.loads(written.stdout)["submit"] == ["sbatch", "job.sbatch"]
    assert "--gpus-per-node=h100:1" in (tmp_path / "out" / "job.sbatch").read_text()
    text = run(main, ["launch", str(tmp_path / "plan.toml"), "--to", "slurm", "-o", out]).output
    assert "start it" in text
    assert f"gpuwise launch {out} --go" in text.replace("\n    ", " ")
    clients = Clients(tmp_path / "clients", "sbatch")
    monkeypatch.setenv("PATH", str(clients.folder))
    monkeypatch.setenv("CALLS", str(tmp_path / "clients" / "calls"))
    monkeypatch.setenv("CODE", "7")
    assert run(main, ["launch", out, "--go"]).exit_code == 7
    assert run(main, ["launch", out, "--go", "--to", "ssh"]).exit_code == 2
    assert run(main, ["launch", str(tmp_path / "plan.toml"), "--to", "slrum", "-o", out]).exit_code == 2
    assert run(main, ["launch", str(tmp_path / "plan.toml")]).exit_code == 2


@pytest.mark.parametrize("name", TARGETS)
def test_each_target_has_its_settings_explained(name):
    for key, setting in target(name).settings.items():
        assert target(name).parse_settings([f"{key}={setting.example}", *_required(name, key)])[key] == setting.example
        assert setting.help.endswith(".")


def _required(name: str, other: str) -> list[str]:
    return [f"{key}={s.example}" for key, s in target(name).settings.items() if s.required and key != other]


def test_files_with_folders_are_written_below(tmp_path):
    folder = write_folder(tmp_path / "out", {"a/b.txt": b"x"}, {"target": "ssh", "submit": ["bash", "launch.sh"]})
    assert (tmp_path / "out" / "a" / "b.txt").read_bytes() == b"x"
    assert folder.submit == ("bash", "launch.sh")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("micro_batch = 64", "micro_batch = 32", "micro_batch is 32"),
        ('precision = "amp-bf16"', 'precision = "fp32"', "precision is fp32"),
        ("count = 1\n", "count = 2\n", "count is 2"),
        ("steps = 3815", "steps = 9", "number of steps is 9"),
        ('device = "h100-80gb-sxm"', 'device = "a100-80gb-sxm"', "device is a100-80gb-sxm"),
    ],
)
def test_a_plan_that_was_edited_by_hand_is_not_launched(tmp_path, before, after, message):
    save_plan(sample_plan(), tmp_path / "plan.toml")
    text = (tmp_path / "plan.toml").read_text()
    assert before in text
    (tmp_path / "plan.toml").write_text(text.replace(before, after, 1))
    with pytest.raises(FileFormatError, match=f"edited by hand: .*{message}"):
        gpuwise.launch(tmp_path / "plan.toml", to="torchrun", output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_local_folder_of_the_hub_takes_its_configuration_along(tmp_path):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text("{}")
    (tmp_path / "tiny" / "model.safetensors").write_bytes(b"weights")
    argument, files = job_files(replace(sample_plan(), job_argument=f"hf:{tmp_path}/tiny"))
    assert (argument, files) == ("hf:tiny", {"tiny/config.json": b"{}"})
