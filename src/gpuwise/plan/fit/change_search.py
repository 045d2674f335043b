"""The search for the smallest change that makes a job fit a device, in a fixed order.

The order is by effect on the training:

1. smaller accumulated micro-batches, shards in place of copies on several devices, recomputation, another update kernel, and
   offloading to host memory, which do not change the training,
2. optimizer state in 8 and 4 bits,
3. LoRA, LoRA on weights in 16 bits, and QLoRA, each with and without recomputation.

If nothing fits, the search is repeated with half the sequence length, and so on, with the changes that parameters and
optimizer state leave room for. A variant without a recording is traced only if known bounds leave it a chance to fit.
"""

from __future__ import annotations

from dataclasses import replace

from gpuwise.cost.forecast import Forecast, MemoryForecast
from gpuwise.cost.offload import on_host_bytes
from gpuwise.errors import InputError, JobError
from gpuwise.hardware.cluster import Cluster
from gpuwise.notes.plan import effect_of_technique, host_memory_needed, shorter_samples
from gpuwise.plan.fit.change import FitProblem, FittingChange, NoFittingChange
from gpuwise.plan.fit.least_bytes import least_kept_bytes, least_step_bytes
from gpuwise.plan.fit.techniques import SHARDED, Technique, shards_of_copies, techniques
from gpuwise.plan.pricing.largest import largest_of
from gpuwise.plan.pricing.step import HEADROOM, StepPricer, has_headroom
from gpuwise.plan.pricing.traces import NOT_TRACED
from gpuwise.step_settings import flags_of, job_word
from gpuwise.strategy import Strategy
from gpuwise.trace.memory import kept_bytes
from gpuwise.units import format_bytes

FULL, BACKWARD = "full recompute", "optimizer in backward"
OPTIMIZER, PARAMETERS = "offload of the optimizer", "offload of parameters"
# Each line goes from the smallest change to the one that frees most. If the last of a line does not fit, the line is skipped.
TRAINING: tuple[tuple[tuple[str, ...], ...], ...] = (
    ((SHARDED,), (FULL, SHARDED)),
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


def fitting_change(problem: FitProblem) -> FittingChange | NoFittingChange:
    """The smallest change of the requested strategy that fits the cluster. Raises the errors of tracing that strategy."""
    not_tried: dict[str, list[str]] = {}
    hopeless: set[Strategy] = set()
    search = _ChangeSearch(problem, not_tried, hopeless)
    change = search.first()
    length = longest = search.header.sizes.get("seq_len")
    with_seq_len = problem.pricer.traces.with_seq_len
    while change is None and with_seq_len is not None and length is not None and length // 2 >= SHORTEST_SEQUENCE:
        if search.is_hopeless():
            break
        length //= 2
        try:
            pricer = StepPricer(with_seq_len(length), catalog=problem.pricer.catalog, data=problem.pricer.data)
            search = _ChangeSearch(replace(problem, pricer=pricer), not_tried, hopeless, longest=longest)
            change = search.first()
        except (JobError, *NOT_TRACED) as error:
            not_tried.setdefault(error.what, []).append("shorter samples")
            break
    if change is not None:
        return change
    reasons = tuple(f"{', '.join(dict.fromkeys(names))}: {why}" for why, names in not_tried.items())
    return NoFittingChange(reasons, search.is_hopeless())


class _ChangeSearch:
    """The search at one length of the samples.

    Attributes:
        trace, header: of the requested step at a micro-batch of one.
        not_tried: names of changes by the reason why they are not available.
        hopeless: strategies that fit at no length of samples, at a micro-batch of one.
        longest: the requested sequence length; None if samples have none.
    """

    def __init__(
        self,
        problem: FitProblem,
        not_tried: dict[str, list[str]],
        hopeless: set[Strategy],
        *,
        longest: int | None = None,
    ):
        self.problem, self.pricer, self.not_tried, self.hopeless = problem, problem.pricer, not_tried, hopeless
        requested, traces = problem.requested, problem.pricer.traces
        optimizer = requested.optimizer or traces.family(requested).header.strategy.optimizer
        self.trace = traces.latest_trace(requested.but(micro_batch=1))
        self.header = self.trace.header
        self.longest = longest or self.header.sizes.get("seq_len")
        self.techniques_by_name = {
            each.name: each
            for each in (*techniques(requested.but(optimizer=optimizer), problem.cluster.chip), *shards_of_copies(requested))
        }
        self._answers: dict[tuple[Technique, ...], FittingChange | None] = {}

    def first(self) -> FittingChange | None:
        shorter = self._fitting(())
        if shorter is not None:
            return shorter
        for steps in self._lines():
            if self._fitting(steps[-1]) is not None:
                return next(answer for answer in map(self._fitting, steps) if answer is not None)
        return None

    def is_hopeless(self) -> bool:
        """Whether nothing that was tried fits at any length of samples."""
        return all(
            _of_one_sample(self._with(chosen)) in self.hopeless for chosen in ((), *(line[-1] for line in self._lines()))
        )

    def _lines(self) -> list[list[tuple[Technique, ...]]]:
        """The lines that have a technique which is not requested already."""
        names = INFERENCE if self.problem.requested.mode == "infer" else TRAINING
        lines = [[self._techniques(each) for each in line] for line in names]
        return [line for line in lines if any(line)]

    def _techniques(self, names: tuple[str, ...]) -> tuple[Technique, ...]:
        """The techniques that are not requested already."""
        return tuple(self.techniques_by_name[name] for name in names if name in self.techniques_by_name)

    def _fitting(self, chosen: tuple[Technique, ...]) -> FittingChange | None:
        """The largest micro-batch that fits with these techniques."""
        if chosen not in self._answers:
            self._answers[chosen] = self._find(chosen)
        return self._answers[chosen]

    def _find(self, chosen: tuple[Technique, ...]) -> FittingChange | None:
        strategy, cluster = self._with(chosen), self.problem.cluster
        if _of_one_sample(strategy) in self.hopeless:
            return None
        try:
            ladder = self._ladder(strategy)
            fitting = largest_of(self.pricer, ladder, cluster, memory=self._memory) if ladder else None
            if fitting is None or not self._leaves_headroom(fitting):
                return None
            return self._answer(self.pricer.forecast(fitting, cluster), chosen)
        except NOT_TRACED as error:
            self.hopeless.add(_of_one_sample(strategy))
            if chosen and not isinstance(error, InputError):
                self.not_tried.setdefault(error.what, []).append(chosen[-1].name)
        return None

    def _with(self, chosen: tuple[Technique, ...]) -> Strategy:
        strategy = self.problem.requested
        for technique in chosen:
            strategy = technique.of(strategy)
        return strategy

    def _ladder(self, strategy: Strategy) -> list[Strategy]:
        """Strategies with the same batch in ascending micro-batches; empty if not even one sample fits."""
        whole = strategy.micro_batch
        if strategy.mode == "infer":
            return [strategy]
        if not self._may_fit(_of_one_sample(strategy)):
            return []
        if strategy.optimizer_in_backward:
            return [strategy]
        parts = [part for part in range(1, whole + 1) if whole % part == 0]
        return [strategy.but(micro_batch=part, accumulation=whole * strategy.accumulation // part) for part in parts]

    def _memory(self, strategy: Strategy, cluster: Cluster) -> MemoryForecast:
        """Memory from a replay of the allocator; counted memory if tensors alone leave no headroom."""
        capacity = cluster.capacity_bytes
        hopeless = capacity is not None and self.pricer.needed_bytes(strategy, cluster) > HEADROOM * capacity
        return (self.pricer.counted if hopeless else self.pricer.replayed)(strategy, cluster)

    def _leaves_headroom(self, strategy: Strategy) -> bool:
        """Whether a step leaves headroom; False if the memory of the device is unknown."""
        memory = self._memory(strategy, self.problem.cluster)
        return bool(memory.fits) and has_headroom(memory)

    def _may_fit(self, strategy: Strategy) -> bool:
        """Whether a strategy may fit: False if the counted tensors, or before a tracing their lower bound, are too large."""
        cluster, host_bytes = self.problem.cluster, self.problem.host_bytes
        if cluster.capacity_bytes is None:
            return True
        most = HEADROOM * cluster.capacity_bytes
        if host_bytes is not None and self._on_host_bytes(strategy) > host_bytes:
            missing = f"needs {format_bytes(self._on_host_bytes(strategy))} of host memory, of {format_bytes(host_bytes)}"
            self.not_tried.setdefault(missing, []).append(f"offload of {strategy.offload}")
            self.hopeless.add(strategy)
            return False
        if self._least_bytes(strategy) > most:
            return False
        if self.pricer.needed_bytes(strategy, cluster) <= most:
            return True
        if kept_bytes(self.pricer.traces.latest_trace(strategy)) > most:
            self.hopeless.add(strategy)
        return False

    def _least_bytes(self, strategy: Strategy) -> float:
        """A lower bound of the bytes of a step, as far as it spares a recording."""
        least = least_kept_bytes(self.trace, strategy)
        if least > HEADROOM * (self.problem.cluster.capacity_bytes or 0):
            self.hopeless.add(strategy)
            return least
        if strategy.adapter == "none" and strategy.offload != "parameters":
            return 0.0
        try:
            return least_step_bytes(self.pricer.traces.latest_trace(strategy.but(adapter="none", offload="none")), strategy)
        except NOT_TRACED:
            return 0.0

    def _on_host_bytes(self, strategy: Strategy) -> int:
        return 0 if strategy.offload == "none" else on_host_bytes(self.header)

    def _answer(self, forecast: Forecast, chosen: tuple[Technique, ...]) -> FittingChange:
        problem, strategy = self.problem, forecast.strategy
        names = [technique.name for technique in chosen]
        notes = [effect_of_technique(technique=each.name, effect=each.note) for each in chosen if each.note]
        if strategy.micro_batch != problem.requested.micro_batch:
            names.insert(0, f"micro-batch {strategy.micro_batch:,} x {strategy.accumulation:,}")
        length = self.header.sizes.get("seq_len")
        if length is not None and self.longest is not None and length < self.longest:
            names.append(f"sequence length {length:,}")
            notes.append(shorter_samples(length=length, longest=self.longest))
        host_bytes = self._on_host_bytes(strategy)
        if host_bytes:
            notes.append(host_memory_needed(host_bytes=host_bytes))
        changes = any(technique.changes_training for technique in chosen) or (length or 0) < (self.longest or 0)
        flags, techniques_alone = flags_of(strategy), flags_of(strategy, without=("precision", "micro_batch", "accumulate"))
        if strategy.precision != problem.requested.precision:
            techniques_alone = f"{techniques_alone} --precision {strategy.precision}".strip()
        sizes = self.pricer.traces.sizes
        size_flags = "".join(f" --{name.replace('_', '-')} {value}" for name, value in sizes.items())
        mode = " --mode infer" if strategy.mode == "infer" else ""
        job = job_word(problem.job)
        return FittingChange(
            tuple(names),
            tuple(notes),
            changes,
            dict(sizes),
            forecast,
            host_bytes,
            techniques_alone + size_flags,
            f"gpuwise forecast {job} --on {problem.on} {flags}{size_flags}{mode}",
            "" if mode else f"gpuwise train {job} {flags}{size_flags}",
        )


def _of_one_sample(strategy: Strategy) -> Strategy:
    return strategy.but(micro_batch=1, accumulation=1)
