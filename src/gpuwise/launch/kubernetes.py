"""Kubernetes: a JobSet, whose pods start again together, and a ConfigMap with the files.

Nothing is built or pushed: the image is the user's, and what runs in it can be read in the folder. JobSet makes the headless
service by which the pods meet.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuwise.json_types import JsonObject
from gpuwise.launch.description import Launch
from gpuwise.launch.pods import PORT, SETTINGS, check_pods, config_map, failure_policy, job_template, metadata, pod_script
from gpuwise.launch.shell import joined
from gpuwise.launch.target import LaunchTarget
from gpuwise.yaml_text import yaml_text

FILE = "jobset.yaml"
_JOB = "ranks"  # of the JobSet; a pod is NAME-ranks-0-INDEX


def files(launch: Launch) -> Mapping[str, str]:
    """jobset.yaml."""
    check_pods(launch)
    meets = [
        # JOB_COMPLETION_INDEX: kubernetes.io/docs/concepts/workloads/controllers/job, "Completion mode".
        'export PET_NODE_RANK="$JOB_COMPLETION_INDEX"',
        f"export PET_MASTER_ADDR={launch.name}-{_JOB}-0-0.{launch.name} PET_MASTER_PORT={PORT}",
    ]
    jobset: JsonObject = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata(launch),
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": failure_policy(launch),
            "replicatedJobs": [{"name": _JOB, "replicas": 1, "template": job_template(launch, deadline=True)}],
        },
    }
    header = f"Trains as plan.toml says. Where JobSet is installed: {joined(submit(launch))}"
    return {FILE: yaml_text(config_map(launch, pod_script(launch, meets=meets)), jobset, comment=[header])}


def submit(launch: Launch) -> tuple[str, ...]:
    # Applied by the server, since kubectl's own way keeps a copy of each object in an annotation of 256 KiB at most.
    return ("kubectl", "apply", "--server-side", "-f", FILE)


TARGET = LaunchTarget(
    name="kubernetes",
    client="kubectl",
    client_source="https://kubernetes.io/docs/tasks/tools",
    files=files,
    submit=submit,
    default_grace_s=30.0,  # kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle, "Termination of Pods"
    needs_image=True,
    installs=True,
    mounts=True,
    settings=SETTINGS,
)
