"""Kubeflow Trainer: a TrainJob, and the TrainingRuntime that it runs in: a JobSet as for Kubernetes alone.

A runtime of the launch's own says what a TrainJob cannot: the grace, what is mounted, and when all pods start again.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuwise.json_types import JsonObject
from gpuwise.launch.description import Launch
from gpuwise.launch.kubernetes import submit as submit_jobset
from gpuwise.launch.pods import CONTAINER, SETTINGS, check_pods, config_map, failure_policy, job_template, metadata, pod_script
from gpuwise.launch.shell import joined
from gpuwise.launch.target import LaunchTarget
from gpuwise.yaml_text import yaml_text

FILE = "trainjob.yaml"
_API = "trainer.kubeflow.org/v1alpha1"


def files(launch: Launch) -> Mapping[str, str]:
    """trainjob.yaml. The trainer sets torchrun's variables, PET_NODE_RANK and PET_MASTER_ADDR among them."""
    check_pods(launch)
    job = job_template(launch, deadline=False, labels={"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"})
    runtime: JsonObject = {
        "apiVersion": _API,
        "kind": "TrainingRuntime",
        "metadata": metadata(launch, labels={"trainer.kubeflow.org/framework": "torch"}),
        "spec": {
            "mlPolicy": {"numNodes": launch.machines, "torch": {}},
            "template": {
                "spec": {
                    "failurePolicy": failure_policy(launch),
                    "replicatedJobs": [{"name": CONTAINER, "replicas": 1, "template": job}],
                }
            },
        },
    }
    train_job: JsonObject = {
        "apiVersion": _API,
        "kind": "TrainJob",
        "metadata": metadata(launch),
        "spec": {
            "runtimeRef": {"apiGroup": _API.partition("/")[0], "kind": "TrainingRuntime", "name": launch.name},
            "activeDeadlineSeconds": launch.time_limit_s,
            "trainer": {"numNodes": launch.machines, "numProcPerNode": launch.ranks_per_machine},
        },
    }
    header = f"Trains as plan.toml says. Where Kubeflow Trainer is installed: {joined(submit(launch))}"
    return {FILE: yaml_text(config_map(launch, pod_script(launch, meets=())), runtime, train_job, comment=[header])}


def submit(launch: Launch) -> tuple[str, ...]:
    return (*submit_jobset(launch)[:-1], FILE)


TARGET = LaunchTarget(
    name="kubeflow",
    client="kubectl",
    client_source="https://kubernetes.io/docs/tasks/tools",
    files=files,
    submit=submit,
    default_grace_s=30.0,  # as of any pod
    needs_image=True,
    installs=True,
    mounts=True,
    settings=SETTINGS,
)
