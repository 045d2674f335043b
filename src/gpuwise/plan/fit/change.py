"""What makes a job fit a device it does not fit: the smallest change of what was asked, found in a fixed order.

The order is by how much a change touches the training. First come smaller micro-batches that are accumulated, recomputation,
another way to update, and offloading to host memory: they train the same. Then optimizer state in 8 and 4 bits, then LoRA,
LoRA on weights in 16 bits, and QLoRA, each with and without recomputation. Where nothing fits, the same again with half the
sequence, and so on. A variant that was not recorded is traced only where what is known of the job leaves it a chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from gpuwise.cost.forecast import Forecast
from gpuwise.errors import InputError, JobError, MissingDependencyError, UnsupportedError
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.plan.fit.techniques import Technique, techniques
from gpuwise.plan.space.micro_batch import needed_bytes
from gpuwise.plan.step import forecast_of
from gpuwise.plan.traces import Traces
from gpuwise.plan.types import TraceSource
from gpuwise.step_settings import flags_of, job_word
from gpuwise.strategy import Strategy
from gpuwise.trace.memory import live_bytes
from gpuwise.trace.tables import CATEGORIES
from gpuwise.units import format_bytes

FULL, BACKWARD = "full recompute", "optimizer in backward"
OPTIMIZER, PARAMETERS = "offload of the optimizer", "offload of parameters"
# Each line from the smallest change to what frees most. Where the last of a line does not fit, none of it is tried.
TRAINING: tuple[tuple[tuple[str, ...], ...], ...] = (
    (("selective recompute",), (FULL,)),
    (("fused optimizer kernels",), (BACKWARD,), (FULL, BACKWARD)),
    ((OPTIMIZER,), (FULL, OPTIMIZER)),
    ((PARAMETERS,), (FULL, PARAMETERS)),
    (("8-bit Adam",), (FULL, "8-bit Adam")),
    (("4-bit Adam",), (FULL, "4-bit Adam")),
    (("LoRA",), (FULL, "LoRA")),
    (("LoRA", "precision bf16"), (FULL, "LoRA", "precision bf16")),
    (("QLoRA",), (FULL, "QLoRA")),
)
INFERENCE: tuple[tuple[tuple[str, ...], ...], ...] = ((("precision amp-bf16",),), (("precision bf16",),))
SHORTEST_SEQUENCE = 128
# A forecast of memory is a forecast: an answer leaves this share of the device free.
LARGEST_SHARE = 0.95
# What is left of the activations of the plain step in one with adapters, at least: assumed, to spare tracings that cannot fit.
LEAST_ACTIVATIONS = 0.8
QLORA_BYTES_A_PARAMETER = 0.5
_STATE = tuple(CATEGORIES.index(name) for name in ("parameter", "gradient", "optimizer_state"))
_NOT_HAD = (UnsupportedError, MissingDependencyError, InputError)


@dataclass(frozen=True)
class FitProblem:
    """What does not fit.

    source: the job's traces. asked: with its precision, batch and mesh. cluster: the devices. sizes: those the user gave.
    host_bytes: memory of the host, None where unknown. with_seq_len: the traces at another length, None where the job's
    length is its own. job: the user's job argument, "" for a Job object. on: the device as the command line takes it.
    """

    source: TraceSource
    asked: Strategy
    cluster: Cluster
    catalog: Catalog = field(repr=False)
    sizes: Mapping[str, int] = field(default_factory=dict)
    host_bytes: int | None = None
    with_seq_len: Callable[[int], TraceSource] | None = None
    job: str = ""
    on: str = ""


@dataclass(frozen=True)
class FittingChange:
    """A strategy that fits.

    techniques: what was changed, in words. notes: what that does. changes_training: what is trained, or how it converges,
    differs. sizes: of the samples, where they had to shrink or the user gave them. host_bytes: memory that offloading takes
    of the host. flags: of the techniques and the sizes. command: shows the forecast; run_command: runs it on such a device.
    """

    techniques: tuple[str, ...]
    notes: tuple[str, ...]
    changes_training: bool
    sizes: Mapping[str, int]
    forecast: Forecast
    host_bytes: int
    flags: str
    command: str
    run_command: str

    @property
    def words(self) -> str:
        """'full recompute, QLoRA (changes what is trained)'"""
        change = "changes what is trained" if self.changes_training else "trains the same"
        return f"{', '.join(self.techniques)} ({change})"

    def to_dict(self) -> dict[str, Any]:
        return {
            "techniques": list(self.techniques),
            "notes": list(self.notes),
            "changes_training": self.changes_training,
            "sizes": dict(self.sizes),
            "strategy": self.forecast.strategy.to_dict(),
            "step_time_s": asdict(self.forecast.step_time_s),
            "throughput": {"value": self.forecast.throughput, "unit": self.forecast.throughput_unit},
            "device_bytes": self.forecast.memory.device_bytes,
            "host_bytes": self.host_bytes,
            "command": self.command,
            "run_command": self.run_command,
        }


@dataclass(frozen=True)
class NoFittingChange:
    """Nothing fits. not_tried: why some changes could not be looked at, by name."""

    not_tried: tuple[str, ...] = ()


def fitting_change(problem: FitProblem) -> FittingChange | NoFittingChange:
    """The smallest change of what is asked that fits the device. Raises what tracing the job as asked raises."""
    search = _Search(problem, Traces(problem.source, problem.sizes, problem.asked.optimizer, problem.asked.mode))
    found = search.first()
    if found is not None:
        return found
    length = search.header.sizes.get("seq_len")
    while found is None and problem.with_seq_len is not None and length is not None and length // 2 >= SHORTEST_SEQUENCE:
        length //= 2
        try:
            source = problem.with_seq_len(length)
            shorter = replace(problem, source=source, sizes={**problem.sizes, "seq_len": length})
            search = _Search(
                shorter,
                Traces(source, shorter.sizes, shorter.asked.optimizer, shorter.asked.mode),
                longest=search.longest,
                not_tried=search.not_tried,
            )
            found = search.first()
        except (JobError, *_NOT_HAD) as error:
            search.not_tried.setdefault(error.what, []).append("shorter samples")
            break
    not_tried = (f"{', '.join(dict.fromkeys(names))}: {why}" for why, names in search.not_tried.items())
    return found or NoFittingChange(tuple(not_tried))


class _Search:
    """The search at one size of the samples. not_tried: the names of changes by why they could not be had."""

    def __init__(
        self, problem: FitProblem, traces: Traces, *, longest: int | None = None, not_tried: dict[str, list[str]] | None = None
    ):
        self.problem, self.traces = problem, traces
        self.not_tried = {} if not_tried is None else not_tried
        family = traces.family(problem.asked)
        self.header = traces.make(problem.asked.but(micro_batch=1))[0].header
        self.longest = longest or self.header.sizes.get("seq_len")
        named = problem.asked.but(optimizer=problem.asked.optimizer or family.header.strategy.optimizer)
        self.known = {each.name: each for each in techniques(named, problem.cluster.chip)}
        self._answers: dict[tuple[Technique, ...], FittingChange | None] = {}

    def first(self) -> FittingChange | None:
        shorter = self._fitting(())
        if shorter is not None:
            return shorter
        for line in INFERENCE if self.problem.asked.mode == "infer" else TRAINING:
            steps = [self._techniques(names) for names in line]
            if all(not chosen for chosen in steps) or self._fitting(steps[-1]) is None:
                continue
            return next(answer for answer in map(self._fitting, steps) if answer is not None)
        return None

    def _techniques(self, names: tuple[str, ...]) -> tuple[Technique, ...]:
        """Those that are not already asked for."""
        return tuple(self.known[name] for name in names if name in self.known)

    def _fitting(self, chosen: tuple[Technique, ...]) -> FittingChange | None:
        """The largest part of the batch that fits with these techniques."""
        if chosen not in self._answers:
            self._answers[chosen] = self._find(chosen)
        return self._answers[chosen]

    def _find(self, chosen: tuple[Technique, ...]) -> FittingChange | None:
        strategy: Strategy | None = self.problem.asked
        for technique in chosen:
            strategy = None if strategy is None else technique.of(strategy)
        if strategy is None:
            return None
        try:
            for micro_batch in self._micro_batches(strategy):
                accumulation = strategy.micro_batch * strategy.accumulation // micro_batch
                answer = self._tried(strategy.but(micro_batch=micro_batch, accumulation=accumulation), chosen)
                if answer is not None:
                    return answer
        except _NOT_HAD as error:
            if chosen and not isinstance(error, InputError):
                self.not_tried.setdefault(error.what, []).append(chosen[-1].name)
        return None

    def _micro_batches(self, strategy: Strategy) -> Iterator[int]:
        """Descending: the asked one, then parts of it; none where not even one sample fits."""
        whole = strategy.micro_batch
        if strategy.optimizer_in_backward or strategy.mode == "infer":
            yield whole
            return
        if not self._may_fit(strategy.but(micro_batch=1, accumulation=1)):
            return
        yield from (part for part in range(whole, 0, -1) if whole % part == 0)

    def _may_fit(self, strategy: Strategy) -> bool:
        """False where the tensors alone are too many: counted, or before a tracing the least that is known of them."""
        cluster, host_bytes = self.problem.cluster, self.problem.host_bytes
        if cluster.capacity_bytes is None:
            return True
        most = LARGEST_SHARE * cluster.capacity_bytes
        if host_bytes is not None and self._on_host_bytes(strategy) > host_bytes:
            told = f"needs {format_bytes(self._on_host_bytes(strategy))} of host memory, of {format_bytes(host_bytes)}"
            self.not_tried.setdefault(told, []).append(f"offload of {strategy.offload}")
            return False
        if self._least_bytes(strategy) > most:
            return False
        return needed_bytes(self.traces, strategy, cluster) <= most

    def _least_bytes(self, strategy: Strategy) -> float:
        """Bytes that adapters or visiting parameters need at least, from the trace of the plain step."""
        if strategy.adapter == "none" and strategy.offload != "parameters":
            return 0.0
        plain = strategy.but(adapter="none", offload="none")
        try:
            trace = self.traces.make(plain)[0]
        except _NOT_HAD:
            return 0.0
        storages = trace.storages
        state = np.isin(storages.category, _STATE)
        others = replace(trace, storages=replace(storages, size_bytes=np.where(state, 0, storages.size_bytes)))
        held = float(storages.size_bytes[storages.category == CATEGORIES.index("parameter")].sum())
        if strategy.offload == "parameters":
            held = 0.0
        elif strategy.adapter == "qlora":
            held = QLORA_BYTES_A_PARAMETER * trace.header.parameters
        # Autocast keeps 16-bit copies of weights that are trained, of frozen ones it does not.
        copies = 2 * trace.header.parameters if strategy.precision.startswith("amp-") else 0
        return held + LEAST_ACTIVATIONS * max(0, live_bytes(others).peak_bytes - copies)

    def _on_host_bytes(self, strategy: Strategy) -> int:
        """What offloading holds in host memory: parameters, their gradients and the optimizer's state, two moments in fp32."""
        if strategy.offload == "none":
            return 0
        return 4 * self.header.parameters + 12 * self.header.trainable_parameters

    def _tried(self, strategy: Strategy, chosen: tuple[Technique, ...]) -> FittingChange | None:
        problem, cluster = self.problem, self.problem.cluster
        capacity = cluster.capacity_bytes
        if capacity is not None and needed_bytes(self.traces, strategy, cluster) > LARGEST_SHARE * capacity:
            return None
        forecast = forecast_of(
            self.traces.trace,
            strategy,
            cluster,
            catalog=problem.catalog,
        )
        memory = forecast.memory
        if not memory.fits or (capacity is not None and memory.device_bytes > LARGEST_SHARE * capacity):
            return None
        return self._answer(forecast, chosen)

    def _answer(self, forecast: Forecast, chosen: tuple[Technique, ...]) -> FittingChange:
        problem, strategy = self.problem, forecast.strategy
        names = [technique.name for technique in chosen]
        notes = [f"{technique.name}: {technique.note}" for technique in chosen if technique.note]
        if strategy.micro_batch != problem.asked.micro_batch:
            names.insert(0, f"micro-batch {strategy.micro_batch:,} x {strategy.accumulation:,}")
        length = self.header.sizes.get("seq_len")
        if length is not None and self.longest is not None and length < self.longest:
            names.append(f"sequence length {length:,}")
            notes.append(f"sequence length {length:,}: samples are shorter than {self.longest:,} tokens")
        host_bytes = self._on_host_bytes(strategy)
        if host_bytes:
            notes.append(f"{format_bytes(host_bytes)} of host memory are needed")
        changes = any(technique.changes_training for technique in chosen) or (length or 0) < (self.longest or 0)
        flags, techniques_alone = flags_of(strategy), flags_of(strategy, without=("precision", "micro_batch", "accumulate"))
        if strategy.precision != problem.asked.precision:
            techniques_alone = f"{techniques_alone} --precision {strategy.precision}".strip()
        sizes = "".join(f" --{name.replace('_', '-')} {value}" for name, value in problem.sizes.items())
        mesh, mode = strategy.mesh, " --mode infer" if strategy.mode == "infer" else ""
        sharded = f" --mesh dp_shard={mesh.dp_shard}" if mesh.dp_shard > 1 else ""
        job = job_word(problem.job)
        return FittingChange(
            tuple(names),
            tuple(notes),
            changes,
            dict(problem.sizes),
            forecast,
            host_bytes,
            techniques_alone + sizes,
            f"gpuwise forecast {job} --on {problem.on} {flags}{sizes}{sharded}{mode}",
            "" if mode or mesh.devices > 1 else f"gpuwise train {job} {flags}{sizes}",
        )
