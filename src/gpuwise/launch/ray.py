"""Ray: a job whose driver starts the ranks as workers of Ray Train, and starts them again when one is lost."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files as package_files

from gpuwise.errors import InputError, UnsupportedError
from gpuwise.json_types import Json
from gpuwise.launch.description import Launch
from gpuwise.launch.device_names import device_name
from gpuwise.launch.target import LaunchTarget, TargetSetting
from gpuwise.notes import Note
from gpuwise.notes import launch as notes
from gpuwise.yaml_text import yaml_text

DRIVER, SETTINGS, RUNTIME = "ray_train.py", "ray_launch.json", "runtime_env.yaml"
# pip of a runtime environment runs elsewhere; this is the folder of the job, as Ray unpacks it:
# docs.ray.io/en/latest/ray-core/handling-dependencies.html
_FOLDER = "${RAY_RUNTIME_ENV_CREATE_WORKING_DIR}"


def adapts(launch: Launch) -> tuple[Launch, tuple[Note, ...]]:
    """The launch as it is. Raises InputError for a run folder of one node, UnsupportedError for an image."""
    if not launch.run_folder.startswith("/"):
        raise InputError(
            f"--run {launch.run_folder} lies in each worker's copy of the job, which ends with it.",
            [f"--run /mnt/runs/{launch.name}, a folder that all nodes mount"],
        )
    if launch.image:
        raise UnsupportedError("the image of a Ray cluster is chosen where the cluster is made.", ["leave out --image"])
    return replace(launch, run_folder=os.path.normpath(launch.run_folder)), (notes.killed_at_once(),)


def files(launch: Launch) -> Mapping[str, str]:
    """ray_train.py, its settings, and runtime_env.yaml where something is to be installed."""
    driver = package_files("gpuwise.launch").joinpath("ray_driver.py").read_text(encoding="utf-8")
    texts = {DRIVER: driver, SETTINGS: json.dumps(_settings(launch), indent=2) + "\n"}
    if launch.install:
        packages = [f"{_FOLDER}/{word[2:]}" if word.startswith("./") else word for word in launch.install]
        texts[RUNTIME] = yaml_text({"pip": [*packages]})
    return texts


def _settings(launch: Launch) -> dict[str, Json]:
    cpus = int(launch.settings["cpus-per-rank"])
    resources: dict[str, Json] = {"CPU": cpus, **({"GPU": 1} if launch.devices_per_machine else {})}
    scaling: dict[str, Json] = {
        "num_workers": launch.machines * launch.ranks_per_machine,
        "use_gpu": launch.devices_per_machine > 0,
        "resources_per_worker": resources,
        "placement_strategy": "STRICT_PACK" if launch.machines == 1 else "PACK",
    }
    if accelerator := _accelerator(launch):
        scaling["accelerator_type"] = accelerator
    return {
        "name": launch.name,
        "argv": list(launch.train_argv),
        "run": launch.run_folder,
        "environment": dict(launch.environment),
        "setup": list(launch.setup),
        "scaling": scaling,
        "storage_path": f"{launch.run_folder}-ray",  # of Ray's own notes on the run
        "restarts": launch.restarts,
        "time_limit_s": launch.time_limit_s,
        "margin_s": launch.grace_s,
    }


def _accelerator(launch: Launch) -> str:
    """The accelerator type of the nodes; "" for a CPU and where the user wants any."""
    if not launch.devices_per_machine or launch.settings.get("accelerator") == "any":
        return ""
    return launch.settings.get("accelerator") or device_name(
        "ray", launch.plan.device, speaker="Ray", ways_out=["--set accelerator=NAME of the nodes, or any"]
    )


def submit(launch: Launch) -> tuple[str, ...]:
    """Ray's client, at the cluster of RAY_ADDRESS."""
    runtime = ("--runtime-env", RUNTIME) if launch.install else ()
    return ("ray", "job", "submit", "--working-dir", ".", *runtime, "--", "python", DRIVER)


TARGET = LaunchTarget(
    name="ray",
    client="ray",
    client_source="pip install 'ray[default]', and RAY_ADDRESS of the cluster",
    files=files,
    submit=submit,
    default_grace_s=0.0,
    adapts=adapts,
    settings={
        "accelerator": TargetSetting(
            "The accelerator type of the nodes, or any (the plan's).", r"[A-Za-z0-9][A-Za-z0-9._-]*", "H100"
        ),
        "cpus-per-rank": TargetSetting("Cores that Ray reserves for a rank.", r"[1-9][0-9]{0,3}", "8", default="1"),
    },
)
