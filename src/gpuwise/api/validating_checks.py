"""What `validate` refuses before anything runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from gpuwise.api.local_ranks import check_devices_here
from gpuwise.api.sources import TRACE_SUFFIX
from gpuwise.errors import InputError
from gpuwise.hardware.detect.ranks import rank_environment
from gpuwise.step_settings import DeviceSettings, flag_of, job_word, strategy_of, usual_micro_batches
from gpuwise.strategy import Mesh, check_settings_work
from gpuwise.trace.presets.table import PRESETS

if TYPE_CHECKING:
    from gpuwise.job import Job


def names_of(jobs: str | Sequence[str] | Job) -> list[str]:
    """The names of the jobs, each once. Raises InputError for Job objects."""
    names = [jobs] if isinstance(jobs, str) else list(jobs) if isinstance(jobs, Sequence) else []
    if not isinstance(jobs, Sequence) or not all(isinstance(name, str) for name in names):
        raise InputError(
            "validate runs each job in a process of its own, and only a name can be handed to it.",
            ['write the Job in a file and name it: "path/to/file.py:job"'],
        )
    return list(dict.fromkeys(names))


def check_suite(requested: Mapping[str, object]) -> None:
    """Raises InputError for settings beside the suite's own."""
    if requested:
        flag = flag_of(next(iter(requested)))
        raise InputError(
            f"the suite runs at settings of its own; it takes no {flag}.",
            [f"leave out {flag}", f"name a job: gpuwise validate gpt2 {flag} ..."],
        )


def check_jobs(names: Sequence[str], settings: DeviceSettings, sizes: Mapping[str, int]) -> None:
    """Checks that need neither PyTorch nor the user's code."""
    if not names:
        raise InputError("there is no job to validate.", ["gpuwise validate gpt2 --seq-len 128", "gpuwise validate --suite"])
    # Raises for values out of range and techniques that exclude each other.
    strategy = strategy_of(settings, accumulation=usual_micro_batches(settings) or 1)
    check_settings_work(settings, strategy.mesh, adapter=strategy.adapter)
    for name in names:
        _check_job(name, sizes)


def _check_job(name: str, sizes: Mapping[str, int]) -> None:
    from gpuwise.job import resolve

    if name.endswith(TRACE_SUFFIX):
        raise InputError(f"{name} is a recorded trace: it can be priced, not run.", ["name the job it is of"])
    if name in PRESETS:
        PRESETS[name].check_sizes(sizes)
        return
    scheme, _, rest = name.partition(":")
    if scheme in ("hf", "timm") and rest:
        return
    if not os.path.isfile(name.rpartition(":")[0]):
        resolve(name)  # says what is wrong with it


def check_torch(names: Sequence[str]) -> None:
    """Raises MissingDependencyError where PyTorch is not installed."""
    if find_spec("torch") is None:
        from gpuwise.job.dependencies import require

        require("torch", purpose=f"run {names[0]}")


def check_ranks(mesh: Mesh, names: Sequence[str]) -> None:
    """Raises InputError for a mesh of more devices than this machine has, and in a process that is a rank itself."""
    if mesh.devices == 1:
        return
    if rank_environment() is not None:
        raise InputError(
            "validate starts the ranks of a mesh itself, and this process is a rank of another launcher.",
            ["start it once, without torchrun or srun", "unset RANK and WORLD_SIZE"],
        )
    job = job_word(names[0])
    check_devices_here(mesh, f"gpuwise validate {job}", f"forecast it: gpuwise forecast {job} --on DEVICE --mesh {mesh}")
