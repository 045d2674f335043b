"""Launches for SkyPilot, Kubernetes and Kubeflow: what their files say, and what is refused."""

from __future__ import annotations

import re
import shlex
from base64 import b64decode
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from tests.cloud_launches import FILES, IMAGE, job_of, plan_at, written
from tests.launch_samples import Clients, sample_plan

import gpuwise
from gpuwise.cli.main import main
from gpuwise.errors import GpuwiseError, InputError, UnsupportedError
from gpuwise.yaml_text import yaml_text

PODS = ("kubernetes", "kubeflow")
DOCS = Path(__file__).parents[2] / "docs" / "launch-clouds.md"


def test_skypilot_buys_the_row_that_the_plan_priced(tmp_path):
    [task] = written(plan_at(), "skypilot", tmp_path)
    bought = {"infra": "aws/us-east-1", "instance_type": "p5.48xlarge", "accelerators": "H100:8", "use_spot": False}
    assert task["resources"].items() >= bought.items()
    assert (task["num_nodes"], task["workdir"]) == (1, ".")


@pytest.mark.parametrize(
    ("offer", "resources"),
    [
        ({"provider": "gcp", "instance": "n1-standard-8+1xT4", "region": "us-central1", "chip": "t4", "devices": 1},
         {"infra": "gcp/us-central1", "instance_type": "n1-standard-8", "accelerators": "T4:1"}),
        ({"provider": "gcp", "instance": "a3-megagpu-8g", "region": "us-central1"},
         {"infra": "gcp/us-central1", "instance_type": "a3-megagpu-8g", "accelerators": "H100-MEGA:8"}),
        ({"provider": "gcp", "instance": "H200 part of a3-ultragpu-8g", "region": "us-central1", "chip": "h200-141gb-sxm"},
         {"infra": "gcp/us-central1", "accelerators": "H200:8"}),
        ({"provider": "runpod", "instance": "H100 SXM secure", "region": "global", "devices": 2},
         {"infra": "runpod", "accelerators": "H100-SXM:2"}),
        ({"provider": "lambda", "instance": "gpu_1x_h100_pcie", "region": "us", "chip": "h100-80gb-pcie", "devices": 1},
         {"infra": "lambda", "instance_type": "gpu_1x_h100_pcie", "accelerators": "H100:1"}),
        ({"instance": "m7i.4xlarge", "cpu": True, "chip": "xeon-8480plus"},
         {"infra": "aws/us-east-1", "instance_type": "m7i.4xlarge"}),
    ],
)  # fmt: skip
def test_names_are_those_of_the_provider(tmp_path, offer, resources):
    [task] = written(plan_at(**offer), "skypilot", tmp_path)
    names = ("infra", "instance_type", "accelerators")
    assert {key: task["resources"][key] for key in names if key in task["resources"]} == resources


def test_a_spot_run_is_a_managed_job_that_goes_on(tmp_path):
    [task] = written(plan_at(terms="spot", machines=2), "skypilot", tmp_path, set=["bucket=s3://runs"])
    assert task["resources"]["use_spot"]
    assert task["resources"]["job_recovery"] == {"max_restarts_on_errors": 100, "recover_on_exit_codes": [130]}
    assert task["file_mounts"] == {"/bucket": {"source": "s3://runs", "mode": "MOUNT_CACHED"}}
    script = (tmp_path / "run.sh").read_text()
    assert "--run run --copy-to /bucket/gpt2" in script
    assert "--max-restarts 0" in script  # the controller starts all machines again
    assert gpuwise.launch(plan_at(terms="spot"), to="skypilot", output=tmp_path, set=["volume=v"]).submit[:3] == (
        "sky",
        "jobs",
        "launch",
    )


def test_a_machine_with_the_only_copy_of_the_run_is_stopped_and_not_deleted(tmp_path):
    [alone] = written(plan_at(), "skypilot", tmp_path / "a", set=[])
    [kept] = written(plan_at(), "skypilot", tmp_path / "b")
    assert alone["resources"]["autostop"] == {"idle_minutes": 5, "down": False}
    assert kept["resources"]["autostop"] == {"idle_minutes": 5, "down": True}
    assert kept["volumes"] == {"/runs": "runs"}
    assert "--max-restarts 3" in (tmp_path / "b" / "run.sh").read_text()


@pytest.mark.parametrize("to", PODS)
def test_pods_start_again_together_and_interruptions_are_not_counted(tmp_path, to):
    documents = written(plan_at(machines=2), to, tmp_path, restarts=7)
    job = job_of(documents)
    assert (job["completions"], job["parallelism"], job["completionMode"], job["backoffLimit"]) == (2, 2, "Indexed", 0)
    assert job["failurePolicy"]["maxRestarts"] == 7
    [rule] = [rule for rule in job["failurePolicy"]["rules"] if rule["action"] == "RestartJobSetAndIgnoreMaxRestarts"]
    assert rule["onJobFailureReasons"] == ["PodFailurePolicy"]
    disrupted, saved = job["podFailurePolicy"]["rules"]
    assert disrupted["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert saved["onExitCodes"]["values"] == [130]
    assert "--max-restarts 0" in documents[0]["data"]["run.sh"]


@pytest.mark.parametrize("to", PODS)
def test_a_pod_has_the_devices_the_nodes_and_the_grace_of_the_plan(tmp_path, to):
    slow = plan_at()
    slow = replace(slow, forecast=replace(slow.forecast, step_time_s=replace(slow.forecast.step_time_s, high=100.0)))
    settings = ["volume=runs", "cpu=16", "memory=64Gi", "secret=tokens", "namespace=lab"]
    documents = written(slow, to, tmp_path, set=settings, time_limit="2h")
    pod = job_of(documents)["template"]["spec"]
    [container] = pod["containers"]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8, "cpu": "16", "memory": "64Gi"}
    assert container["envFrom"] == [{"secretRef": {"name": "tokens"}}]
    assert container["image"] == IMAGE
    grace_s = int(re.search(r"--shutdown-timeout (\d+)", documents[0]["data"]["run.sh"])[1])
    assert pod["terminationGracePeriodSeconds"] == grace_s + 30 > 130
    assert {document["metadata"]["namespace"] for document in documents} == {"lab"}
    limits = [job_of(documents).get("activeDeadlineSeconds"), documents[-1]["spec"].get("activeDeadlineSeconds")]
    assert [limit for limit in limits if limit] == [7200]


def test_a_trainjob_runs_in_its_own_runtime(tmp_path):
    _, runtime, job = written(plan_at(machines=4), "kubeflow", tmp_path)
    assert job["spec"]["runtimeRef"] == {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": "gpt2"}
    assert runtime["metadata"]["name"] == "gpt2"
    assert runtime["spec"]["mlPolicy"] == {"numNodes": 4, "torch": {}}
    assert job["spec"]["trainer"] == {"numNodes": 4, "numProcPerNode": 8}


def test_devices_of_amd_and_nodes_by_other_labels(tmp_path):
    pod = job_of(written(plan_at(chip="mi300x"), "kubernetes", tmp_path))["template"]["spec"]
    assert pod["nodeSelector"] == {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}
    assert pod["containers"][0]["resources"]["limits"] == {"amd.com/gpu": 8}
    own = job_of(written(plan_at(chip="mi25"), "kubernetes", tmp_path, set=["volume=v", "node-label=a.b/c=d,e=f"]))
    assert own["template"]["spec"]["nodeSelector"] == {"a.b/c": "d", "e": "f"}


def test_files_that_are_no_text_travel_too(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a b.bin").write_bytes(b"\xff\x00")
    (tmp_path / "data" / "a_b.bin").write_bytes(b"text")
    config, *rest = written(plan_at(), "kubernetes", tmp_path / "out", include=[str(tmp_path / "data")])
    items = job_of([config, *rest])["template"]["spec"]["volumes"][0]["configMap"]["items"]
    paths = {item["path"]: item["key"] for item in items}
    assert b64decode(config["binaryData"][paths["data/a b.bin"]]) == b"\xff\x00"
    assert config["data"][paths["data/a_b.bin"]] == "text"
    assert all(re.fullmatch(r"[-._a-zA-Z0-9]{1,253}", key) for key in paths.values())


def test_files_larger_than_a_config_map_are_refused_with_their_size(tmp_path):
    (tmp_path / "net.bin").write_bytes(b"x" * 2**20)
    with pytest.raises(InputError, match=r"1,0\d\d,\d{3} bytes, and a ConfigMap takes 1,048,576; net.bin is the largest"):
        written(plan_at(), "kubernetes", tmp_path / "out", include=[str(tmp_path / "net.bin")])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("to", "plan", "settings", "message"),
    [
        ("skypilot", plan_at(terms="spot"), {"set": []}, "a run folder no other machine can see"),
        ("skypilot", plan_at(machines=2), {"set": []}, "a run folder no other machine can see"),
        ("skypilot", plan_at(machines=2), {"set": [], "restarts": 0}, "a run folder no other machine can see"),
        ("kubernetes", plan_at(), {"set": []}, "a run folder no other machine can see"),
        ("kubeflow", plan_at(), {"set": []}, "a run folder no other machine can see"),
        ("skypilot", plan_at(provider="coreweave"), {}, "SkyPilot does not rent at coreweave"),
        ("skypilot", plan_at(provider="own"), {}, "SkyPilot does not rent at own"),
        ("skypilot", plan_at(provider="runpod", instance="H100 SXM community"), {}, "rents its secure ones alone"),
        ("skypilot", plan_at(terms="reserved-1y"), {}, "priced reserved-1y, which SkyPilot does not buy"),
        ("skypilot", plan_at(chip="gb200-186gb"), {}, "SkyPilot at aws has no name for gb200-186gb"),
        ("skypilot", plan_at(provider="vast", instance="8x"), {}, "at vast calls h100-80gb-sxm H100, as it calls other"),
        ("skypilot", plan_at(provider="runpod", cpu=True), {}, "no name for runpod's"),
        ("kubernetes", plan_at(chip="mi25"), {}, "Kubernetes has no name for mi25"),
        ("kubernetes", plan_at(chip="trainium2"), {}, "devices of AWS are no resource of pods here"),
        ("skypilot", plan_at(), {"env": ["HF_TOKEN=hf_x"]}, "HF_TOKEN: its value would stand in the files"),
        ("kubernetes", plan_at(), {"env": ["aws_secret_access_key=x"]}, "its value would stand in the files"),
        ("kubernetes", plan_at(), {"run": "/work"}, "Kubernetes mounts no volume there"),
        ("kubernetes", plan_at(), {"run": "../run"}, "Kubernetes mounts no volume there"),
        ("kubernetes", plan_at(), {"run": "/launch/./"}, "Kubernetes mounts no volume there"),
        ("skypilot", plan_at(), {"run": "/mnt"}, "is not in a folder where the volume could be mounted"),
        ("skypilot", plan_at(), {"run": "/mnt/."}, "is not in a folder where the volume could be mounted"),
        ("skypilot", plan_at(), {"run": "/mnt/../a"}, "is not in a folder where the volume could be mounted"),
        ("kubernetes", plan_at(), {"set": ["volume=A B"]}, "volume is"),
        ("skypilot", plan_at(), {"set": ["bucket=file:///etc"]}, "bucket is"),
    ],
)  # fmt: skip
def test_what_a_target_cannot_do_is_an_error_that_names_it(tmp_path, to, plan, settings, message):
    with pytest.raises(GpuwiseError, match=message) as caught:
        written(plan, to, tmp_path / "out", **settings)
    assert caught.value.exit_code == 2
    assert caught.value.ways_out
    assert not (tmp_path / "out").exists()


def test_containers_need_an_image(tmp_path):
    with pytest.raises(InputError, match="no image is named"):
        gpuwise.launch(sample_plan(), to="kubernetes", output=tmp_path / "out", set=["volume=v"])


def test_keys_reach_skypilot_by_name_alone(tmp_path):
    result = gpuwise.launch(plan_at(), to="skypilot", output=tmp_path, set=["secrets=HF_TOKEN,WANDB_API_KEY"])
    assert result.submit[-5:] == ("--secret", "HF_TOKEN", "--secret", "WANDB_API_KEY", "task.yaml")


@pytest.mark.parametrize("to", FILES)
def test_go_hands_the_files_to_the_client(tmp_path, monkeypatch, to):
    clients = Clients(tmp_path / "clients", "sky", "kubectl")
    monkeypatch.setenv("PATH", f"{clients.folder}:/usr/bin:/bin")
    monkeypatch.setenv("CALLS", str(tmp_path / "clients" / "calls"))
    image = {} if to == "skypilot" else {"image": IMAGE}
    gpuwise.launch(plan_at(), to=to, output=tmp_path / "out", go=True, set=["volume=v"], **image)
    [call] = clients.calls()
    assert (call.argv[-1], call.folder) == (FILES[to], str(tmp_path / "out"))


def test_the_time_limit_of_a_task_saves_and_does_not_start_again(tmp_path):
    """SkyPilot has no limit of its own: the task's text runs in bash, with a program in the place of run.sh."""
    [task] = written(plan_at(), "skypilot", tmp_path, time_limit=1)
    (tmp_path / "run.sh").write_text("trap 'touch saved; exit 130' TERM\nwhile :; do read -rt 0.01 <> <(:); done\n")
    clients = Clients(tmp_path / "clients")
    assert " 1 bash run.sh" in task["run"]
    done = clients.run("bash", "-c", task["run"].replace(" 1 bash", " 0.1 bash"), cwd=tmp_path)
    assert (done.returncode, "the run is saved, and not done" in done.stderr) == (0, True)
    assert (tmp_path / "saved").exists()
    for code in (0, 7, 130):
        (tmp_path / "run.sh").write_text(f"exit {code}\n")
        assert clients.run("bash", "-c", task["run"], cwd=tmp_path).returncode == code


@pytest.mark.parametrize(
    "text", ["no", "y", "1e3", "0o7", "0x1f", "1_000", ": ", "~", "", "null", "- a", "#", "a: b", "é\u2028", "\t"]
)
def test_strings_stay_strings_in_yaml(text):
    assert yaml.safe_load(yaml_text({"a": text, "b": [text], "c": f"{text}\nx"}, comment=["x\ny: z"])) == {
        "a": text,
        "b": [text],
        "c": f"{text}\nx",
    }
    line = yaml_text({"a": text}, comment=["x"]).splitlines()[1]
    assert line.startswith('a: "')  # readers of YAML 1.1 and 1.2 disagree on bare words such as y and 1e3


def test_unknown_chips_have_a_way_out(tmp_path):
    with pytest.raises(UnsupportedError) as caught:
        written(plan_at(chip="mi25"), "kubernetes", tmp_path / "out")
    assert "--set node-label=KEY=VALUE" in caught.value.ways_out[0]


@pytest.mark.skipif(not DOCS.exists(), reason="not run from the source tree")
def test_the_documented_task_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = re.search(r"```bash\n(.*?)```", DOCS.read_text(), re.DOTALL)[1].splitlines()
    assert len(commands) == 2
    for command in commands:
        result = CliRunner().invoke(main, shlex.split(command)[1:])
        assert result.exit_code == 0, result.output
    assert yaml.safe_load((tmp_path / "cloud" / "task.yaml").read_text())["resources"]["instance_type"] == "p5.48xlarge"
