"""The timeline of a step: of the streams of a recorded rank, of the ranks of a pipeline, or of one composed rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuwise.cost.calibration import calibration
from gpuwise.cost.forecast import Forecast
from gpuwise.cost.kernels import kernel_times
from gpuwise.cost.parameters import Parameters
from gpuwise.cost.parameters import parameters as shipped_parameters
from gpuwise.cost.rank_time import RankTime, rank_times
from gpuwise.cost.timeline.durations import durations
from gpuwise.cost.timeline.micro_batches import COMPUTE
from gpuwise.cost.timeline.orders import BACKWARD, FORWARD
from gpuwise.cost.timeline.stages import pipeline_spans, pipeline_step
from gpuwise.cost.timeline.streams import repeats, simulated
from gpuwise.hardware.cluster import Cluster
from gpuwise.printed import Printed
from gpuwise.strategy import Strategy
from gpuwise.trace.parallel.ranks import RankStep
from gpuwise.trace.tables import PHASES
from gpuwise.trace.trace import Trace

COMMUNICATION, INPUT, OFFLOAD = "communication", "input", "offload"
KINDS = (*PHASES, COMMUNICATION, INPUT, OFFLOAD)
_MOST_REPEATS = 8  # of the micro-batch that stands for others, in the timeline of a recorded rank


@dataclass(frozen=True)
class TimelineSpan:
    """What a lane does for a while.

    Attributes:
        name: what it is.
        kind: of KINDS.
        start_s, end_s: seconds from the beginning of the step.
    """

    name: str
    kind: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class TimelineLane:
    """A stream, or a rank, with its spans in their order. Between them it waits."""

    name: str
    spans: tuple[TimelineSpan, ...]


@dataclass(frozen=True, repr=False)
class StepTimeline(Printed):
    """One optimizer step over time.

    Attributes:
        job: name of the job.
        device: name of the device.
        strategy: strategy of the step.
        lanes: streams of one rank, or ranks of a pipeline.
        remark: what the lanes are.
        forecast: forecast of the step.
    """

    job: str
    device: str
    strategy: Strategy
    lanes: tuple[TimelineLane, ...]
    remark: str
    forecast: Forecast

    @property
    def whole_s(self) -> float:
        """Seconds until the last lane is done."""
        return max((lane.spans[-1].end_s for lane in self.lanes if lane.spans), default=0.0)


def step_timeline(
    ranks: Sequence[RankStep], cluster: Cluster, forecast: Forecast, *, parameters: Parameters | None = None
) -> StepTimeline:
    """The timeline of a step.

    Arguments:
        ranks: the ranks that differ, as rank_steps has them.
        cluster: the devices.
        forecast: of the step.
        parameters: figures of the cost model; None takes the shipped ones.
    """
    parameters, strategy = parameters or shipped_parameters(), forecast.strategy
    recorded = ranks[0].recorded
    if strategy.mesh.pp > 1 and strategy.mode == "train":
        each = rank_times(ranks, cluster, strategy=strategy, parameters=parameters)
        lanes, remark = _ranks_of_pipeline(each, strategy, cluster), "the ranks of the pipeline"
    elif recorded is not None:
        lanes = _streams(recorded, ranks[0], cluster, parameters)
        remark = "the streams of one rank, as recorded"
        if repeats(recorded) > _MOST_REPEATS:
            remark += f"; {_MOST_REPEATS} of {repeats(recorded)} equal micro-batches"
    else:
        several = forecast.count > 1
        lanes = (_one_rank(forecast),)
        remark = "one rank, with the communication that nothing hides" if several else "one device, phase by phase"
    return StepTimeline(forecast.job, forecast.device, strategy, lanes, remark, forecast)


def _one_rank(forecast: Forecast) -> TimelineLane:
    """A composed rank: its micro-batches, what each waits for, and what comes once a step."""
    seconds, micro_batches = forecast.breakdown, forecast.strategy.accumulation
    by_axis = {name: value for name, value in seconds.items() if name.startswith(COMMUNICATION)}
    once = {name: value for name, value in by_axis.items() if name.startswith(f"{COMMUNICATION}_dp")}
    parts = [
        (FORWARD, FORWARD, seconds.get(FORWARD, 0.0)),
        *((name, COMMUNICATION, value / 2) for name, value in by_axis.items() if name not in once),
        ("recompute", "recompute", seconds.get("recompute", 0.0)),
        (BACKWARD, BACKWARD, seconds.get(BACKWARD, 0.0)),
        *((name, COMMUNICATION, value / 2) for name, value in by_axis.items() if name not in once),
    ]
    rows = [(f"{name} {number}", kind, value / micro_batches) for number in range(micro_batches) for name, kind, value in parts]
    rows += [(name, COMMUNICATION, value) for name, value in once.items()]
    rows += [(name, name, seconds.get(name, 0.0)) for name in ("optimizer", OFFLOAD, INPUT)]
    return TimelineLane("rank", _one_after_the_other(rows, start_s=0.0))


def _one_after_the_other(rows: Sequence[tuple[str, str, float]], *, start_s: float) -> tuple[TimelineSpan, ...]:
    """Spans from names, kinds and seconds; those that take no time are left out."""
    spans = []
    for name, kind, seconds in rows:
        if seconds > 0:
            spans.append(TimelineSpan(name.replace("_", " "), kind, start_s, start_s + seconds))
            start_s += seconds
    return tuple(spans)


def _ranks_of_pipeline(each: Sequence[RankTime], strategy: Strategy, cluster: Cluster) -> tuple[TimelineLane, ...]:
    """The ranks of a pipeline: actions of its schedule, the communication that comes once a step, and the update."""
    step, lanes = pipeline_step(each, strategy, cluster), []
    last = step.ranks - 1
    for rank, (*actions, update) in enumerate(pipeline_spans(step)):
        of_rank = each[0] if rank == 0 else each[-1] if rank == last else each[len(each) // 2]
        spans = [
            TimelineSpan(f"{part} {number}, stage {stage}", FORWARD if part == FORWARD else BACKWARD, start_s, end_s)
            for (part, stage, number), start_s, end_s in actions
        ]
        once_s = of_rank.exchange.exposed_s - of_rank.exchange.each_micro_batch_s
        after_s = once_s + of_rank.phase_s["optimizer"]
        quicker = (update.end_s - update.start_s) / after_s if after_s else 1.0
        rows = [(COMMUNICATION, COMMUNICATION, once_s), ("optimizer", "optimizer", of_rank.phase_s["optimizer"])]
        rows = [(name, kind, quicker * seconds) for name, kind, seconds in rows]
        after = _one_after_the_other(rows, start_s=update.start_s)
        lanes.append(TimelineLane(f"rank {rank}", (*spans, *after)))
    return tuple(lanes)


def _streams(recorded: Trace, rank: RankStep, cluster: Cluster, parameters: Parameters) -> tuple[TimelineLane, ...]:
    """The streams of a recorded rank: one span a row."""
    times = kernel_times(rank.trace, cluster.chip, parameters, calibration(cluster.chip))
    rows = simulated(
        recorded,
        durations(recorded, cluster, kernel_s=times.device_s, parameters=parameters),
        times=min(repeats(recorded), _MOST_REPEATS),
        slowdown=parameters.overlap_slowdown,
        one_stream=cluster.chip.kind == "cpu",
    )
    sequence, operations, groups = recorded.sequence, recorded.operations, recorded.header.groups
    streams = sequence.stream[rows.position]
    lanes = []
    for stream in np.unique(streams).tolist():
        spans = []
        for row in np.flatnonzero(streams == stream).tolist():
            position = int(rows.position[row])
            operation = int(sequence.operation[position])
            name, kind = operations.name[operation], PHASES[int(sequence.phase[position])]
            if rows.is_collective[row]:
                name, kind = f"{name} {groups[int(operations.group[operation])].axis}", COMMUNICATION
            elif module := recorded.modules[int(sequence.module[position])]:
                name += f" {module}"
            if rows.end_s[row] > rows.start_s[row]:
                spans.append(TimelineSpan(name, kind, float(rows.start_s[row]), float(rows.end_s[row])))
        lanes.append(TimelineLane("computation" if stream == COMPUTE else f"stream {stream}", tuple(spans)))
    return tuple(lane for lane in lanes if lane.spans)
