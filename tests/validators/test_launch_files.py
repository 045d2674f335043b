"""Launches before the targets' own parsers: bash tests/validators/launch-run.sh. Elsewhere, without them, nothing runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cloud_launches import AWS, IMAGE, job_of, plan_at, written
from tests.validators.sky_prices import chosen, write_lists

pytest.importorskip("kubernetes_validate", reason="bash tests/validators/launch-run.sh makes the environment")
POD_PLANS = {
    "one machine": plan_at(),
    "sixteen machines, spot": plan_at(machines=16, terms="spot"),
    "AMD": plan_at(chip="mi300x"),
    "CPU": plan_at(cpu=True),
}
SETTINGS = ["volume=runs", "namespace=lab", "secret=tokens", "cpu=8", "memory=64Gi"]


@pytest.fixture(scope="module", autouse=True)
def skypilots_lists(tmp_path_factory: pytest.TempPathFactory) -> None:
    """SkyPilot looks for its lists and settings in the home folder when it is imported."""
    home = tmp_path_factory.mktemp("home")
    os.environ.update(HOME=str(home), SKYPILOT_DISABLE_USAGE_COLLECTION="1")
    write_lists(home)


def lost(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """What a model dropped or changed: models ignore keys that they do not know, and say nothing."""
    if isinstance(ours, dict):
        missing = [f"{path}/{key} is gone" for key in ours if key not in theirs]
        return missing + [one for key in ours if key in theirs for one in lost(ours[key], theirs[key], f"{path}/{key}")]
    if isinstance(ours, list):
        if len(ours) != len(theirs):
            return [f"{path} has another length"]
        return [one for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) for one in lost(a, b, f"{path}[{i}]")]
    return [] if ours == theirs else [f"{path}: {ours!r} became {theirs!r}"]


@pytest.mark.parametrize("name", POD_PLANS)
@pytest.mark.parametrize("to", ["kubernetes", "kubeflow"])
def test_objects_of_kubernetes_are_valid_by_its_strict_schema(tmp_path: Path, to: str, name: str):
    import kubernetes_validate

    documents = written(POD_PLANS[name], to, tmp_path, set=SETTINGS, env=["A=no", "B=1e3", "C=: x"])
    job = {key: value for key, value in job_of(documents).items() if key != "failurePolicy"}
    for document in (documents[0], {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": job}):
        for version in ("1.31", "1.37"):
            kubernetes_validate.validate(document, version, strict=True)
    typo = {**job, "backofLimit": 0}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": typo}, "1.37", strict=True
        )


@pytest.mark.parametrize("name", POD_PLANS)
@pytest.mark.parametrize("to", ["kubernetes", "kubeflow"])
def test_the_official_models_read_every_key_and_write_it_again(tmp_path: Path, to: str, name: str):
    from kubeflow_trainer_api import models

    kinds = {
        "JobSet": models.JobsetV1alpha2JobSet,
        "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime,
        "TrainJob": models.TrainerV1alpha1TrainJob,
    }
    for document in written(POD_PLANS[name], to, tmp_path, set=SETTINGS)[1:]:
        model = kinds[document["kind"]]
        assert lost(document, model.from_dict(document).to_dict()) == []
        assert lost({**document, "spec": {**document["spec"], "typo": 1}}, model.from_dict(document).to_dict())


PLANS = {
    "aws, spot, two machines": ({"machines": 2, "terms": "spot"}, "p5.48xlarge", 2 * 21.1543),
    "aws on demand": ({}, "p5.48xlarge", 55.04),
    "aws, one of two hosts of an L4": ({"instance": "g6.2xlarge", "chip": "l4", "devices": 1}, "g6.2xlarge", 0.98),
    "aws, CPU": ({"instance": "m7i.4xlarge", "cpu": True}, "m7i.4xlarge", 0.81),
    "gcp": ({"provider": "gcp", "instance": "a3-highgpu-8g", "region": "us-central1"}, "a3-highgpu-8g", 88.0),
    "gcp, mega": ({"provider": "gcp", "instance": "a3-megagpu-8g", "region": "us-central1"}, "a3-megagpu-8g", 93.0),
    "gcp, T4 on a host": (
        {"provider": "gcp", "instance": "n1-standard-8+1xT4", "region": "us-central1", "chip": "t4", "devices": 1},
        "n1-standard-8",
        0.73,
    ),
    "azure, SXM": (
        {"provider": "azure", "instance": "Standard_ND96isr_H100_v5", "region": "eastus"},
        "Standard_ND96isr_H100_v5",
        98.32,
    ),
    "azure, NVL": (
        {
            "provider": "azure",
            "instance": "Standard_NC80adis_H100_v5",
            "region": "eastus",
            "chip": "h100-94gb-nvl",
            "devices": 2,
        },
        "Standard_NC80adis_H100_v5",
        13.96,
    ),
    "lambda, SXM beside a cheaper PCIe of the same name": (
        {"provider": "lambda", "instance": "gpu_1x_h100_sxm5", "region": "us", "devices": 1},
        "gpu_1x_h100_sxm5",
        3.29,
    ),
    "nebius": (
        {
            "provider": "nebius",
            "instance": "gpu-l40s-d_4gpu-192vcpu-1152gb",
            "region": "eu-north1",
            "chip": "l40s",
            "devices": 4,
        },
        "gpu-l40s-d_4gpu-192vcpu-1152gb",
        11.0,
    ),
    "runpod": (
        {"provider": "runpod", "instance": "H100 SXM secure", "region": "global", "devices": 2},
        "2x_H100-SXM_SECURE",
        5.98,
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_skypilot_would_buy_what_the_plan_priced(tmp_path: Path, name: str):
    offer, instance, usd_per_hour = PLANS[name]
    written(plan_at(**{**AWS, **offer}), "skypilot", tmp_path)
    best, usd = chosen(tmp_path)
    assert (best.instance_type, best.use_spot) == (instance, offer.get("terms") == "spot")
    assert usd == pytest.approx(usd_per_hour)


@pytest.mark.parametrize("settings", [["bucket=s3://runs"], ["bucket=gs://runs/of/us"], ["volume=runs"]])
def test_skypilot_reads_every_key_of_a_task(tmp_path: Path, settings: list[str]):
    import sky

    [task] = written(plan_at(machines=2, terms="spot"), "skypilot", tmp_path, set=settings, image=IMAGE)
    parsed = sky.Task.from_yaml_config({key: value for key, value in task.items() if key != "workdir"})
    again = parsed.to_yaml_config()
    assert (again["run"], again["num_nodes"], again["name"]) == (task["run"], 2, "gpt2")
    resources = again["resources"]
    assert (list(resources["image_id"].values()), resources["use_spot"]) == ([f"docker:{IMAGE}"], True)
    assert resources["job_recovery"].items() >= task["resources"]["job_recovery"].items()
    if "file_mounts" in task:
        assert again["file_mounts"]["/bucket"].items() >= task["file_mounts"]["/bucket"].items()
    else:
        assert again["volumes"] == task["volumes"]
    with pytest.raises(ValueError, match="spot"):
        sky.Task.from_yaml_config({**task, "resources": {**task["resources"], "spot": True}})


@pytest.mark.parametrize("to", ["kubernetes", "kubeflow"])
def test_gos_parser_of_yaml_reads_the_same(tmp_path: Path, to: str):
    """kubectl's own, offline: `kubectl kustomize` reads the objects and writes them again."""
    import shutil
    import subprocess

    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    odd = ["A=no", "B=1e3", "C=: x", "D=a\rb", "F=#", "G=0o7"]
    documents = written(plan_at(machines=2), to, tmp_path, set=["volume=y", "node-label=a/b=1e3"], env=odd)
    file = next(tmp_path.glob("*job*.yaml"))
    (tmp_path / "kustomization.yaml").write_text(f"resources: [{file.name}]\n")
    done = subprocess.run(["kubectl", "kustomize", str(tmp_path)], capture_output=True, text=True, check=True)
    theirs = {document["kind"]: document for document in yaml.safe_load_all(done.stdout)}
    assert theirs == {document["kind"]: document for document in documents}
