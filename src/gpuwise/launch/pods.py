"""What launches on Kubernetes have in common: files in a ConfigMap, a Job with a pod for each machine, when all start again."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from posixpath import normpath

from gpuwise.errors import InputError, UnsupportedError
from gpuwise.json_types import Json, JsonObject
from gpuwise.launch.description import Launch
from gpuwise.launch.device_names import device_name
from gpuwise.launch.secret_names import no_secrets
from gpuwise.launch.shell import ends_as_state, exports, script
from gpuwise.launch.target import TargetSetting
from gpuwise.launch.torchrun import agent_lines

CONTAINER, PORT = "node", 29500
SCRIPT = "run.sh"
_FILES, _WORK = "/launch", "/work"  # where the ConfigMap is mounted, read-only, and where the training runs
# kubernetes.io/docs/concepts/configuration/configmap: "cannot exceed 1 MiB".
LARGEST_BYTES = 2**20
_INTERRUPTED = 130
_ASKS_S = 30  # after the ranks have ended: the script asks for the state of the run
# Resource and label by vendor: NVIDIA/k8s-device-plugin README and docs of GPU feature discovery; ROCm/k8s-device-plugin
# README and cmd/k8s-node-labeller.
_VENDORS = {"NVIDIA": ("nvidia.com/gpu", "nvidia.com/gpu.product"), "AMD": ("amd.com/gpu", "amd.com/gpu.product-name")}

_DNS = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_LABEL = r"[A-Za-z0-9][A-Za-z0-9./_-]{0,100}=[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
SETTINGS = {
    "volume": TargetSetting("A PersistentVolumeClaim that all pods mount; the run is its folder NAME.", _DNS, "runs"),
    "namespace": TargetSetting("The namespace.", _DNS, "training"),
    "node-label": TargetSetting(
        "Labels of the nodes, with commas, instead of the GPU's product label.",
        rf"{_LABEL}(,{_LABEL})*",
        "cloud.google.com/gke-accelerator=nvidia-h100-80gb",
    ),
    "secret": TargetSetting("A Secret whose keys become variables of the training.", _DNS, "tokens"),
    "cpu": TargetSetting("Cores of each pod.", r"[0-9]{1,4}", "16"),
    "memory": TargetSetting("Memory of each pod.", r"[0-9]{1,5}(Mi|Gi)", "128Gi"),
}


def check_pods(launch: Launch) -> None:
    """Raises InputError for a launch whose run would be lost with a pod, or whose files would hold keys."""
    no_secrets(launch, "--set secret=NAME, of `kubectl create secret generic NAME --from-literal=...`")
    if "volume" not in launch.settings:
        raise InputError(
            f"{launch.run_folder} would lie in a pod: a run folder no other machine can see, and lost when the pod ends.",
            ["--set volume=CLAIM, a PersistentVolumeClaim that every pod can mount (ReadWriteMany for several machines)"],
        )


def pod_script(launch: Launch, *, meets: Sequence[str]) -> str:
    """run.sh of a pod.

    Arguments:
        meets: lines that set PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT, torchrun's own variables.
    """
    once = replace(launch, restarts=0)  # all pods start again together, by the JobSet
    return script(
        "# Run by each pod, in its working folder.",
        "set -u",
        'cp -RL "$(dirname "${BASH_SOURCE[0]}")/..data/." . || exit 2  # a ConfigMap is read-only; ..data is its version',
        exports(launch.environment),
        [] if launch.machines == 1 else list(meets),
        launch.setup_lines,
        agent_lines(once, rendezvous=("--standalone",) if launch.machines == 1 else ()),
        ends_as_state(),
    )


def config_map(launch: Launch, run_script: str) -> JsonObject:
    """The ConfigMap with the files of the launch. Raises InputError where they are larger than one may be."""
    files = {**launch.files, SCRIPT: run_script.encode()}
    if (size := sum(map(len, files.values()))) > LARGEST_BYTES:
        largest = max(files, key=lambda path: len(files[path]))
        raise InputError(
            f"the files of the launch have {size:,} bytes, and a ConfigMap takes {LARGEST_BYTES:,}; {largest} is the largest "
            f"with {len(files[largest]):,}.",
            ["build them into the image, and --install none", "put data on the volume, and name that path in the job"],
        )
    texts: dict[str, Json] = {}
    binaries: dict[str, Json] = {}
    for key, path in _keys(files).items():
        try:
            texts[key] = files[path].decode()
        except UnicodeDecodeError:
            binaries[key] = b64encode(files[path]).decode()
    data: dict[str, Json] = {"data": texts}
    if binaries:
        data["binaryData"] = binaries
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(launch), **data}


def metadata(launch: Launch, **more: Json) -> JsonObject:
    """Name and namespace of an object."""
    namespace = launch.settings.get("namespace")
    return {"name": launch.name, **({"namespace": namespace} if namespace else {}), **more}


def job_template(launch: Launch, *, deadline: bool, **template_metadata: Json) -> JsonObject:
    """The Job: an indexed pod for each machine. The first that fails fails it, since the others would wait for it.

    Arguments:
        deadline: whether the Job ends at the launch's time limit.
        template_metadata: metadata of the Job.
    """
    spec: dict[str, Json] = {
        "parallelism": launch.machines,
        "completions": launch.machines,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        **({"activeDeadlineSeconds": launch.time_limit_s} if deadline else {}),
        # A pod that was taken away, or that saved in time: the Job fails by this policy, which a JobSet does not count.
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": [_INTERRUPTED]},
                },
            ]
        },
        "template": {"spec": _pod(launch)},
    }
    return {**({"metadata": template_metadata} if template_metadata else {}), "spec": spec}


def failure_policy(launch: Launch) -> JsonObject:
    """When a JobSet starts again, all pods together: not after the time limit; as often as needed after interruptions."""
    return {
        "maxRestarts": launch.restarts,
        "restartStrategy": "BlockingRecreate",  # the pods of before are gone when the new ones read the run
        "rules": [
            {"name": "timeLimit", "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]},
            {
                "name": "interrupted",
                "action": "RestartJobSetAndIgnoreMaxRestarts",
                "onJobFailureReasons": ["PodFailurePolicy"],
            },
        ],
    }


def _pod(launch: Launch) -> JsonObject:
    resources: dict[str, Json] = {key: launch.settings[key] for key in ("cpu", "memory") if key in launch.settings}
    spec: dict[str, Json] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": launch.grace_s + _ASKS_S,
    }
    labels = dict(pair.split("=", 1) for pair in launch.settings.get("node-label", "").split(",") if pair)
    if launch.devices_per_machine:
        resource, label = _vendor(launch)
        resources[resource] = launch.devices_per_machine
        if not labels:
            ways = ["--set node-label=KEY=VALUE names the nodes by labels of your own"]
            labels[label] = device_name("kubernetes", launch.plan.device, speaker="Kubernetes", ways_out=ways)
        spec["tolerations"] = [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}]
    if labels:
        spec["nodeSelector"] = labels
    mounts: list[Json] = [
        {"name": "launch", "mountPath": _FILES, "readOnly": True},
        {"name": "work", "mountPath": _WORK},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    items: list[Json] = [{"key": key, "path": path} for key, path in _keys({**launch.files, SCRIPT: b""}).items()]
    volumes: list[Json] = [
        {"name": "launch", "configMap": {"name": launch.name, "items": items}},
        {"name": "work", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},  # a container's own has 64 MiB, too few for NCCL and loaders
    ]
    if claim := launch.settings.get("volume"):
        mounts.append({"name": "run", "mountPath": _run_mount(launch), "subPath": launch.name})
        volumes.append({"name": "run", "persistentVolumeClaim": {"claimName": claim}})
    container: dict[str, Json] = {
        "name": CONTAINER,
        "image": launch.image,
        "command": ["bash", f"{_FILES}/{SCRIPT}"],
        "workingDir": _WORK,
        "volumeMounts": mounts,
    }
    if resources:
        container["resources"] = {"limits": resources, "requests": resources}
    if secret := launch.settings.get("secret"):
        container["envFrom"] = [{"secretRef": {"name": secret}}]
    return {**spec, "containers": [container], "volumes": volumes}


def _run_mount(launch: Launch) -> str:
    """Where the folder of the run is mounted. Raises InputError for a path that Kubernetes does not mount at."""
    folder = launch.run_folder.removeprefix("./")
    path = folder if folder.startswith("/") else f"{_WORK}/{folder}"
    if ":" in path or ".." in path.split("/") or normpath(path).lstrip("/") in ("", ".", _FILES[1:], _WORK[1:]):
        raise InputError(f"--run {launch.run_folder}: Kubernetes mounts no volume there.", ["--run /runs/digits"])
    return path


def _vendor(launch: Launch) -> tuple[str, str]:
    if launch.vendor not in _VENDORS:
        raise UnsupportedError(
            f"devices of {launch.vendor or 'an unknown maker'} are no resource of pods here: {', '.join(_VENDORS)} are.",
            ["plan for one of theirs: gpuwise plan --on DEVICE"],
        )
    return _VENDORS[launch.vendor]


def _keys(files: Mapping[str, bytes]) -> dict[str, str]:
    """Paths by key of the ConfigMap: letters, digits, '-', '_' and '.'; what else is in a path becomes '_'."""
    keys: dict[str, str] = {}
    for path in files:
        key = re.sub(r"[^A-Za-z0-9._-]", "_", path)[-200:]
        if key in keys or key.startswith(".."):
            key = f"{len(keys)}_{key}"
        keys[key] = path
    return keys
