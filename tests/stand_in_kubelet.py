"""A kubelet and the controllers of Job, JobSet, TrainJob and SkyPilot, as far as a launch's files need them, in processes.

It reads the emitted YAML and does what the controllers' documentation says: a pod for each index with the controller's
variables, its ConfigMap and volume at its paths, its name on the loopback device; SIGTERM, the grace, SIGKILL; all pods
again by the failure policy. It proves that the files keep their side of the contract, not that a cluster keeps its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from base64 import b64decode
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

_POLL_S = 0.02
# A container: processes, mounts and the name of the host of its own, and names of all pods in /etc/hosts.
CONTAINER = (
    *("unshare", "--user", "--map-root-user", "--mount", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc"),
    *("bash", "-c", 'hostname "$0" && mount --bind "$1" /etc/hosts && exec "${@:2}"'),
)


@dataclass
class Pod:
    """A pod, or a machine of SkyPilot: a container and how long it gets after SIGTERM."""

    container: subprocess.Popen[bytes]
    grace_s: float
    disrupted: bool = False

    @property
    def code(self) -> int | None:
        return self.container.poll()

    def terminate(self, *, all_processes: bool = False) -> None:
        """SIGTERM to the first process, or to each, and SIGKILL once the grace is over."""
        for pid in self._processes() if all_processes else self._processes()[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        try:
            self.container.wait(self.grace_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """As when the machine goes: all processes at once."""
        self.container.kill()
        self.container.wait()

    def failed(self) -> bool:
        return self.code not in (None, 0)

    def _processes(self) -> list[int]:
        """From the first one on, as the machine counts them."""
        pids, waiting = [], [self.container.pid]
        while waiting:
            with suppress(OSError):
                pid = waiting.pop(0)
                children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                pids += map(int, children)
                waiting += map(int, children)
        return pids


@dataclass
class Cluster:
    """Where pods run.

    Attributes:
        folder: for pods, volumes and logs.
        variables: of every container, beside the controller's: PATH, and where gpuwise is.
        attempts: pods of each start, in order.
        counted: restarts that counted towards the limit.
    """

    folder: Path
    variables: dict[str, str]
    attempts: list[list[Pod]] = field(default_factory=list)
    counted: int = 0

    @property
    def hosts(self) -> Path:
        return self.folder / "hosts"

    def log(self) -> str:
        """What all pods printed."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log")))

    def start(self, argv: list[str], *, name: str, work: Path, grace_s: float, **variables: str) -> Pod:
        number = len(list(self.folder.glob("*.log")))
        with open(self.folder / f"{number:03}.log", "wb") as log:
            words = [*CONTAINER, name, str(self.hosts), *argv]
            container = subprocess.Popen(words, cwd=work, env={**self.variables, **variables}, stdout=log, stderr=log)
        return Pod(container, grace_s)


@dataclass
class JobSetRun:
    """A JobSet, or a TrainJob with its runtime, from its file. `until_over` returns when it has completed or failed."""

    cluster: Cluster
    documents: list[dict[str, Any]]

    def __post_init__(self) -> None:
        of_kind = {document["kind"]: document for document in self.documents}
        self.config, train_job = of_kind["ConfigMap"], of_kind.get("TrainJob")
        jobset = of_kind.get("JobSet")
        self.spec = jobset["spec"] if jobset else of_kind["TrainingRuntime"]["spec"]["template"]["spec"]
        self.name = (train_job or jobset)["metadata"]["name"]  # type: ignore[index]
        [replicated] = self.spec["replicatedJobs"]
        self.job, self.hostname = replicated["template"]["spec"], f"{self.name}-{replicated['name']}-0"
        self.ranks = train_job["spec"]["trainer"]["numProcPerNode"] if train_job else None

    def until_over(self, *, disrupt: list[Callable[[], bool]]) -> str:
        """Runs until "Completed" or "Failed". disrupt: for each start in turn, whether pod 0 is evicted now."""
        while True:
            self.start()
            evicted = self._watch(disrupt.pop(0) if disrupt else None)
            if evicted is None and not any(pod.failed() for pod in self.cluster.attempts[-1]):
                return "Completed"
            reason = self._reason()
            for pod in self.cluster.attempts[-1]:  # BlockingRecreate: the others are deleted before any is made anew
                pod.terminate()
            actions = [rule["action"] for rule in self.spec["failurePolicy"]["rules"] if reason in rule["onJobFailureReasons"]]
            action = actions[0] if actions else "RestartJobSet"
            self.cluster.counted += action == "RestartJobSet"
            if action == "FailJobSet" or self.cluster.counted > self.spec["failurePolicy"]["maxRestarts"]:
                return "Failed"

    def start(self) -> None:
        pods = []
        names = [f"{self.hostname}-{index}.{self.name}" for index in range(self.job["completions"])]
        self.cluster.hosts.write_text("127.0.0.1 localhost\n" + "".join(f"127.0.0.1 {name}\n" for name in names))
        for index in range(self.job["parallelism"]):
            variables = {"JOB_COMPLETION_INDEX": str(index)}
            if self.ranks is not None:  # what Kubeflow's torch plugin sets
                meets = {"PET_NODE_RANK": str(index), "PET_MASTER_ADDR": names[0], "PET_MASTER_PORT": "29400"}
                variables |= {**meets, "PET_NNODES": str(len(names)), "PET_NPROC_PER_NODE": str(self.ranks)}
            pods.append(self._pod(index, variables))
        self.cluster.attempts.append(pods)

    def _pod(self, index: int, variables: dict[str, str]) -> Pod:
        spec = self.job["template"]["spec"]
        [container] = spec["containers"]
        root = self.cluster.folder / f"pod-{len(self.cluster.attempts)}-{index}"
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for mount in container["volumeMounts"]:
            volume, path = volumes[mount["name"]], root / mount["mountPath"].lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            if "configMap" in volume:
                mount_files(path, self.config, volume["configMap"]["items"])
            elif "persistentVolumeClaim" in volume:
                claim = self.cluster.folder / "volumes" / volume["persistentVolumeClaim"]["claimName"] / mount["subPath"]
                claim.mkdir(parents=True, exist_ok=True)
                path.symlink_to(claim)
            else:
                path.mkdir(exist_ok=True)
        argv = [str(root / word.lstrip("/")) if word.startswith("/") else word for word in container["command"]]
        work = root / container["workingDir"].lstrip("/")
        grace_s, name = spec["terminationGracePeriodSeconds"], f"{self.hostname}-{index}"
        return self.cluster.start(argv, name=name, work=work, grace_s=grace_s, **variables)

    def _watch(self, evicts: Callable[[], bool] | None) -> Pod | None:
        """Waits until all pods have ended, or one has failed, or it is time to evict the first."""
        pods = self.cluster.attempts[-1]
        while any(pod.code is None for pod in pods) and not any(pod.failed() for pod in pods):
            if evicts is not None and evicts():
                pods[0].disrupted = True
                pods[0].terminate()
                return pods[0]
            time.sleep(_POLL_S)
        return None

    def _reason(self) -> str:
        """Why the Job failed: by the first rule of its policy that a failed pod matches, else since backoffLimit is 0."""
        for pod in self.cluster.attempts[-1]:
            for rule in self.job["podFailurePolicy"]["rules"]:
                codes = rule.get("onExitCodes", {}).get("values", [])
                matches = pod.disrupted if "onPodConditions" in rule else pod.code in codes
                if pod.failed() and matches and rule["action"] == "FailJob":
                    return "PodFailurePolicy"
        return "BackoffLimitExceeded"


@dataclass
class SkyRun:
    """A task of SkyPilot as a managed job: its machines are taken away without a signal, and new ones start in their place."""

    cluster: Cluster
    task: dict[str, Any]
    workdir: Path

    def until_over(self, *, disrupt: list[Callable[[], bool]]) -> str:
        """As JobSetRun.until_over; what is disrupted is the first machine."""
        recovery = self.task["resources"]["job_recovery"]
        while True:
            pods = self._start()
            evicts = disrupt.pop(0) if disrupt else None
            while any(pod.code is None for pod in pods):
                if evicts is not None and evicts():
                    pods[0].kill()
                if any(pod.failed() for pod in pods):
                    for pod in pods:
                        pod.terminate(all_processes=True)  # as job_lib.cancel_jobs does on the machines that are left
                time.sleep(_POLL_S)
            codes = {pod.code for pod in pods}
            if codes == {0}:
                return "Completed"
            gone = -signal.SIGKILL in codes
            if not gone and not codes & set(recovery["recover_on_exit_codes"]):
                self.cluster.counted += 1
                if self.cluster.counted > recovery["max_restarts_on_errors"]:
                    return "Failed"

    def _start(self) -> list[Pod]:
        pods = []
        self.cluster.hosts.write_text("127.0.0.1 localhost\n")
        addresses = "\n".join("127.0.0.1" for _ in range(self.task["num_nodes"]))
        for rank in range(self.task["num_nodes"]):
            machine = self.cluster.folder / f"machine-{len(self.cluster.attempts)}-{rank}"
            shutil.copytree(self.workdir, machine)
            variables = {"SKYPILOT_NODE_RANK": str(rank), "SKYPILOT_NODE_IPS": addresses}
            variables["SKYPILOT_NUM_NODES"] = str(self.task["num_nodes"])
            argv = ["bash", "-c", self.task["run"]]
            pods.append(self.cluster.start(argv, name=machine.name, work=machine, grace_s=30, **variables))
        self.cluster.attempts.append(pods)
        return pods


def mount_files(path: Path, config: dict[str, Any], items: list[dict[str, str]]) -> None:
    """A ConfigMap as the kubelet's atomic writer mounts it: a folder of this version, ..data, and links to its files."""
    contents = {key: text.encode() for key, text in config["data"].items()}
    contents |= {key: b64decode(text) for key, text in config.get("binaryData", {}).items()}
    for item in items:
        file = path / "..2026_11_28" / item["path"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(contents[item["key"]])
    (path / "..data").symlink_to("..2026_11_28")
    for entry in (path / "..data").iterdir():
        (path / entry.name).symlink_to(Path("..data") / entry.name)


def jobset_run(cluster: Cluster, text: str) -> JobSetRun:
    return JobSetRun(cluster, list(yaml.safe_load_all(text)))


def sky_run(cluster: Cluster, workdir: Path) -> SkyRun:
    return SkyRun(cluster, yaml.safe_load((workdir / "task.yaml").read_text()), workdir)
