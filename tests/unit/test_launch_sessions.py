"""gpuwise launch --to dstack and --to ray: what is written, what is refused, what the driver does on a worker."""

from __future__ import annotations

import json
import os
import sys
import time
import types
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.launch_samples import sample_plan

import gpuwise
from gpuwise.errors import InputError, UnsupportedError
from gpuwise.hardware import load_catalog
from gpuwise.launch import dstack, ray, ray_driver
from gpuwise.launch.device_names import device_tables
from gpuwise.launch.make import describe

SHARED = {"run": "/runs/a", "set": ["shared=/mnt/runs", "instance-type=any"]}


@pytest.mark.parametrize(
    ("plan", "values", "message"),
    [
        (sample_plan(devices=16, machines=2), {"run": "/runs/a", "set": ["volume=runs"]}, "they share no run folder"),
        (sample_plan(), {}, "the container's disk is gone"),
        (sample_plan(), {"set": ["volume=runs"]}, "is not in a folder where the volume could be mounted"),
        (sample_plan(), {"run": "/runs", "set": ["volume=runs"]}, "is not in a folder where"),
        (sample_plan(), {"run": "/runs/../etc/a", "set": ["volume=runs"]}, "is not in a folder where"),
        (sample_plan(), {"run": "/runs/a", "set": ["volume=runs", "shared=/mnt"]}, "both say where"),
        (sample_plan(), {"name": "a", **SHARED}, "have 2 characters or more"),
        (sample_plan(), {"grace": "5min", **SHARED}, "dstack kills 10 s after the signal"),
        (sample_plan(), {"run": "/runs/a", "set": ["volume=runs"]}, "dstack calls h100-80gb-sxm H100:80GB, as it calls other"),
        (
            replace(sample_plan(), device="gtx-580"),
            {"run": "/runs/a", "set": ["volume=runs"]},
            "dstack has no name for gtx-580",
        ),
        (sample_plan(), {"set": ["volume=$(x)"]}, "volume is"),
    ],
)
def test_what_dstack_cannot_do_is_refused(plan, values, message, tmp_path):
    with pytest.raises((InputError, UnsupportedError), match=message):
        gpuwise.launch(plan, to="dstack", output=tmp_path / "out", **values)
    assert not (tmp_path / "out").exists()


def test_a_save_longer_than_dstacks_ten_seconds_leaves_the_periodic_checkpoints(tmp_path):
    slow = sample_plan()
    slow = replace(slow, forecast=replace(slow.forecast, step_time_s=slow.forecast.step_time_s.scaled(100)))
    result = gpuwise.launch(slow, to="dstack", output=tmp_path, **SHARED)
    assert result.grace_s == 10 < result.save_s
    assert any("only the periodic checkpoints count" in note for note in result.notes)
    assert any("dstack counts no restarts" in note for note in result.notes)


def test_nodes_of_dstack_meet_at_the_first(tmp_path):
    gpuwise.launch(sample_plan(devices=16, machines=2), to="dstack", output=tmp_path, **SHARED)
    lines = (tmp_path / "run.sh").read_text().splitlines()
    assert 'export PET_RDZV_ENDPOINT="$DSTACK_MASTER_NODE_IP:29500"' in lines
    [agent] = [line for line in lines if "--nnodes" in line]
    assert "--nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-id gpt2" in agent
    assert yaml.safe_load((tmp_path / "gpuwise.dstack.yml").read_text())["nodes"] == 2


@pytest.mark.parametrize("table", ["dstack", "ray", "colab", "kaggle"])
def test_devices_are_named_for_accelerators_alone(table):
    chips, names = load_catalog().chips, device_tables()[table]
    assert all(chips[chip].kind != "cpu" for chip in (*names.names, *names.unsure))


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@settings(max_examples=40, deadline=None)
@given(
    machines=st.sampled_from([1, 2, 4]),
    terms=st.sampled_from(["spot", "on-demand", "owned", "free"]),
    cpu=st.booleans(),
    chip=st.sampled_from(["h100-80gb-sxm", "t4", "rtx-4090", "mi300x"]),
    name=TEXTS.filter(str.strip),
    value=TEXTS,
)
def test_files_of_drawn_plans_are_read_back_as_they_are(machines, terms, cpu, chip, name, value):
    plan = replace(sample_plan(devices=4 * machines, machines=machines, terms=terms, cpu=cpu), job=name)
    plan = plan if cpu else replace(plan, device=chip)
    values = {"run": f"/runs/{name.replace('/', '').replace('..', '')}x", "env": [f"A={value}"], "setup": [f"echo {name!a}"]}
    on_dstack = {**values, "set": SHARED["set"]}
    launched = describe(plan, dstack.TARGET, on_dstack, plan_bytes=b"", vendor="").launch
    task = yaml.safe_load(dstack.files(launched)["gpuwise.dstack.yml"])
    assert task["nodes"] == machines
    assert task["resources"]["gpu"] == 0 if cpu else task["resources"]["gpu"]["count"] == 4
    assert task["volumes"] == [{"instance_path": "/mnt/runs", "path": "/runs"}]
    assert task["spot_policy"] == (terms if terms in ("spot", "on-demand") else "auto")
    launched = describe(plan, ray.TARGET, values, plan_bytes=b"", vendor="").launch
    content = json.loads(ray.files(launched)["ray_launch.json"])
    assert content["environment"] == {"A": value}
    assert content["setup"] == [f"echo {name!a}"]
    assert content["argv"][-1] == content["run"] == os.path.normpath(values["run"])
    assert content["scaling"]["num_workers"] == 4 * machines
    assert content["scaling"]["resources_per_worker"] == ({"CPU": 1} if cpu else {"CPU": 1, "GPU": 1})


def test_ray_installs_a_wheel_from_the_folder_of_the_job(tmp_path):
    wheel = tmp_path / "gpuwise-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"PK")
    result = gpuwise.launch(sample_plan(), to="ray", output=tmp_path / "out", run="/runs/a", install=str(wheel))
    folder = "${RAY_RUNTIME_ENV_CREATE_WORKING_DIR}"
    assert yaml.safe_load((tmp_path / "out" / "runtime_env.yaml").read_text()) == {"pip": [f"{folder}/{wheel.name}[torch]"]}
    assert result.submit == (
        *("ray", "job", "submit", "--working-dir", ".", "--runtime-env", "runtime_env.yaml"),
        *("--", "python", "ray_train.py"),
    )
    assert (tmp_path / "out" / wheel.name).exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "lies in each worker's copy of the job"),
        ({"run": "/runs/a", "image": "a/b:1"}, "the image of a Ray cluster"),
        ({"run": "/runs/a", "set": ["cpus-per-rank=0"]}, "cpus-per-rank is"),
    ],
)
def test_what_ray_cannot_do_is_refused(values, message, tmp_path):
    with pytest.raises((InputError, UnsupportedError), match=message):
        gpuwise.launch(sample_plan(), to="ray", output=tmp_path, **values)
    with pytest.raises(UnsupportedError, match="Ray has no name for gtx-580"):
        gpuwise.launch(replace(sample_plan(), device="gtx-580"), to="ray", output=tmp_path, run="/runs/a")
    gpuwise.launch(replace(sample_plan(), device="gtx-580"), to="ray", output=tmp_path, run="/runs/a", set=["accelerator=any"])
    assert "accelerator_type" not in json.loads((tmp_path / "ray_launch.json").read_text())["scaling"]


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """A worker of Ray, as the driver sees it: rank 1 of 2, in the folder of a job."""
    context = types.SimpleNamespace(
        get_world_rank=lambda: 1, get_world_size=lambda: 2, get_local_rank=lambda: 1, get_local_world_size=lambda: 2
    )
    module = types.ModuleType("ray")
    module.train = types.ModuleType("ray.train")
    module.train.get_context = lambda: context
    monkeypatch.setitem(sys.modules, "ray", module)
    monkeypatch.setitem(sys.modules, "ray.train", module.train)
    monkeypatch.setattr(ray_driver, "meeting_point", lambda *, first: ("10.0.0.1", 4242))
    (tmp_path / ray_driver.SETTINGS).write_text("{}")
    monkeypatch.syspath_prepend(str(tmp_path))
    show = "import json, os, sys; json.dump([sys.argv[1:], dict(os.environ)], open('seen', 'w')); sys.exit(int(sys.argv[1]))"

    def run(code: int, *, left_s: float = 60.0, **changes: object) -> tuple[list[str], dict[str, str]]:
        settings_of_rank = {"argv": ["-c", show, str(code)], "environment": {}, "setup": [], "margin_s": 10}
        ray_driver.rank({**settings_of_rank, "ends_unix_s": time.time() + left_s, **changes})
        seen: tuple[list[str], dict[str, str]] = json.loads((tmp_path / "seen").read_text())
        return seen

    return run


def test_a_rank_has_its_number_its_time_and_the_users_values(worker, tmp_path):
    value = "x\n$(touch hacked) '\""
    argv, variables = worker(0, environment={"A": value}, setup=["export B='two  words'"])
    assert [variables[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")] == ["1", "2", "1", "2"]
    assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == ("10.0.0.1", "4242")
    assert (variables["A"], variables["B"]) == (value, "two  words")
    assert argv[1] == "--time-limit"
    assert 50 < float(argv[2].removesuffix("s")) <= 60
    assert not (tmp_path / "hacked").exists()


def test_only_what_may_end_otherwise_is_tried_again(worker, tmp_path):
    for code in (1, 3, 4, 130):
        with pytest.raises(RuntimeError, match=f"rank 1 ended with exit code {code}"):
            worker(code)
    worker(2)  # the user's mistake
    worker(130, left_s=15.0)  # the time limit: it saved within the margin
    (tmp_path / "seen").unlink()
    with pytest.raises(FileNotFoundError):  # no time is left: nothing runs
        worker(0, left_s=-1.0)


def test_a_rank_ends_with_its_worker(tmp_path):
    """The process that Ray kills takes its rank along."""
    import signal
    import subprocess

    rank = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"
    parent = (
        "import os, subprocess, sys; from gpuwise.launch import ray_driver; "
        f"subprocess.run([sys.executable, '-c', ray_driver.WITH_ITS_WORKER, str(os.getpid()), sys.executable, '-c', {rank!r}])"
    )
    variables = {**os.environ, "PYTHONPATH": str(Path(gpuwise.__file__).parents[1])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", parent], env=variables, text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip().isdecimal()  # it waits for its input, which stays open
        process.send_signal(signal.SIGKILL)
        assert process.stdout.read() == ""  # its end of the pipe is closed, too
