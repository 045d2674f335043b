"""What a stop takes that saves the run: the end of the step in flight, the last checkpoint, the end of the process.

A target that takes machines away gives them some seconds (torchrun 30 s, Kubernetes 30 s, AWS 120 s, Slurm's GraceTime). Where
`stop_seconds` is longer, the last save does not end in time and only the periodic checkpoint counts.
"""

from __future__ import annotations

from gpuwise.cost.forecast import Interval
from gpuwise.errors import InputError, UnsupportedError
from gpuwise.plan.economics.spot import write_rate_bytes_per_s
from gpuwise.plan.types import Plan

EXIT_S = 5.0  # for log, report and interpreter, as gpuwise.runtime.interruption.deadline keeps it free
STEPS_AHEAD = 4  # that a run may take after a signal on a device that its host runs ahead of (runtime/run/device_losses.py)
RATE_SPREAD = 2.0  # an assumed rate of writing may be this many times lower or higher; a guess
MEASURED_SPREAD = 1.5  # a save may last this many times its usual time, as the deadlines of a run assume
TELLING_SHARE = 0.05  # of the time in which another save is being written: above it the high end waits for that, too
_MOMENTS = 2  # of Adam and its kin, each as large as the parameters


def save_bytes(plan: Plan) -> int:
    """Bytes of a checkpoint that one machine writes: parameters and optimizer state of its ranks.

    Replicas have the same, which the first of them writes; other ranks have parts of their own. Averages of parameters
    (`ema_decay`) are not in a forecast, and not counted. Where the forecast has no memory by category, all memory counts.

    Raises UnsupportedError for a plan whose parameters live in host memory, which the forecast does not count.
    """
    memory, strategy = plan.forecast.memory, plan.strategy
    if strategy.offload == "parameters":
        raise UnsupportedError("the plan keeps its parameters in host memory: the size of its checkpoints is not forecast.")
    of_rank = memory.peak_allocated_bytes
    if memory.by_category:
        parameters = memory.by_category.get("parameter", 0)
        on_host = _MOMENTS * parameters if strategy.offload == "optimizer" else 0
        of_rank = parameters + memory.by_category.get("optimizer_state", 0) + on_host
    parts = strategy.mesh.devices // strategy.mesh.dp_replicate
    return of_rank * min(parts, -(-strategy.mesh.devices // max(1, plan.machines)))


def save_seconds(plan: Plan, *, write_bytes_per_s: float | None = None) -> Interval:
    """Seconds that a checkpoint of a plan takes until it is on the disk, with a 90 % interval.

    Arguments:
        write_bytes_per_s: at which one machine writes where the run's folder is, such as bytes / write_s of the log's
            checkpoint records; None assumes half the machine's network, see gpuwise.plan.economics.spot.

    Raises InputError for a rate that is not above zero, and as save_bytes does.
    """
    if write_bytes_per_s is not None and not 0 < write_bytes_per_s < float("inf"):
        raise InputError(f"a rate of writing must be above zero, got {write_bytes_per_s!r}.")
    nbytes = save_bytes(plan)
    if write_bytes_per_s is not None:
        seconds = nbytes / write_bytes_per_s
        return Interval(seconds, seconds / MEASURED_SPREAD, seconds * MEASURED_SPREAD)
    seconds = nbytes / write_rate_bytes_per_s(plan.offer.network_bytes_per_s)
    return Interval(seconds, seconds / RATE_SPREAD, seconds * RATE_SPREAD)


def stop_seconds(plan: Plan, *, write_bytes_per_s: float | None = None) -> Interval:
    """Seconds from a stop signal until the run is saved and its processes have ended, with a 90 % interval.

    A signal comes at any moment of a step, so half a step is left on average. The high end has whole steps, those that a GPU
    is behind its host included, and a save that is being written already where that is likely.

    Arguments and errors are those of save_seconds.
    """
    save, step = save_seconds(plan, write_bytes_per_s=write_bytes_per_s), plan.forecast.step_time_s
    ahead = 0 if plan.on_cpu else STEPS_AHEAD
    every_s = plan.checkpoint_interval_s
    saves = 2 if every_s is not None and save.value > TELLING_SHARE * every_s else 1
    return Interval(
        step.value * (0.5 + ahead / 2) + save.value + EXIT_S,
        save.low,
        step.high * (1 + ahead) + saves * save.high + EXIT_S,
    )
