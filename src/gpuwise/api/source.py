"""What a source of traces is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import partial

from gpuwise.notes import Note
from gpuwise.notes.job import forward_alone
from gpuwise.strategy import Mesh, Strategy
from gpuwise.trace import Header, Trace, TraceFamily
from gpuwise.trace.update.compose import compose_update


class StepSource(ABC):
    """The traces of one job: called with a Strategy, gives the family of its variant.

    What a source finds is what was recorded; another update than the job's own is composed from that.

    name: of the job. argument: what the user typed, "" for a Job object. sizes: seq_len and image_size where the user
    gave them. samples_per_epoch: None where unknown. Families are kept, so that asking twice costs nothing.
    """

    samples_per_epoch: int | None = None

    def __init__(self, name: str, argument: str, sizes: dict[str, int]):
        self.name, self.argument, self.sizes = name, argument, sizes
        self._families: dict[tuple[Strategy, str], TraceFamily] = {}

    def __call__(self, strategy: Strategy, *, target: str = "accelerator") -> TraceFamily:
        """Raises UnsupportedError or MissingDependencyError where the variant cannot be had.

        target: whose kernels are traced, "accelerator", "pre-ampere" or "cpu"; a recording keeps its own.
        """
        variant = strategy.variant
        key = (variant, target)
        if key not in self._families:
            family = compose_update(partial(self.find, target=target), variant, on_cpu=target == "cpu")
            self._families[key] = replace(family, header=self.unanswered(family.header))
        return self._families[key]

    def trace(self, strategy: Strategy, *, target: str = "accelerator") -> Trace:
        """The Trace of this strategy, on one device, at the user's sizes."""
        trace = compose_update(partial(self.step, target=target), strategy.but(mesh=Mesh()), on_cpu=target == "cpu")
        return replace(trace, header=self.unanswered(trace.header))

    @abstractmethod
    def find(self, strategy: Strategy, target: str) -> TraceFamily:
        """The family of a variant as recorded, not yet kept."""

    def step(self, strategy: Strategy, target: str) -> Trace:
        """The step of a strategy as recorded."""
        family = self.find(strategy.variant, target)
        return family.at(accumulation=strategy.accumulation, micro_batch=strategy.micro_batch, **self.sizes)

    def with_own_kernels(self) -> StepSource:
        """The source for the CPU of this machine; itself, unless what it answers with has kernels of another device."""
        return self

    def unanswered(self, header: Header) -> Header:
        """The header without the assumptions that the user's sizes replace. Of a forward pass it is also without the optimizer,
        and with a note on what inference leaves out."""
        flags = {f"--{name.replace('_', '-')}" for name in self.sizes}
        added: tuple[Note, ...] = ()
        if header.strategy.mode == "infer":
            flags.add("--optimizer")
            added = (forward_alone(),)
        kept = tuple(note for note in header.assumption_notes if note.flag not in flags and note not in added)
        return replace(header, assumption_notes=(*kept, *added))

    def default_precision(self, best: str) -> str:
        """The precision where the user names none: the device's best."""
        return best

    @property
    def tokens_per_sample(self) -> int:
        """1 where samples are no sequences of tokens."""
        return 1
