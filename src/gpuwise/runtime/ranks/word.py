"""StepWord: what ranks exchange in every step. It averages the loss over ranks and carries a word of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from gpuwise.runtime.build.named_loss import LossParts
from gpuwise.runtime.devices import backend_of
from gpuwise.runtime.parallel.gradient_numbers import GradientNumbers
from gpuwise.runtime.parallel.world import World
from gpuwise.runtime.ranks.ranks import Ranks

WITHIN_S = 600.0  # for the first step of all ranks, which may compile
_IN_FLIGHT = 8  # words whose copy to the device may not be done: more than the steps that the host runs ahead


class Word(NamedTuple):
    """What a rank sends beside its loss. Each number is added over ranks.

    Attributes:
        stop: 1 from a rank that asks to stop.
        unsaved: 1 from a rank that has no time left for a last save.
        save: 1 from rank 0 when a save is due.
    """

    stop: float = 0.0
    unsaved: float = 0.0
    save: float = 0.0

    @property
    def silent(self) -> bool:
        return not any(self)


WORDS = len(Word._fields)


class StepWord:
    """Averages the loss of a step over all ranks, and carries a Word with it.

    `start` begins the exchange, `read` ends it: between the two the ranks compute. It is a small collective, or a part of the
    gradients' own, which costs nothing. The loss of the ranks that compute it is averaged over data-parallel and
    context-parallel ranks; of a tensor-parallel group, whose ranks have the same loss, the first one sends it. Named parts
    of the loss are averaged, too, but not through a pipeline.

    Arguments:
        has_loss: whether this rank computes the loss.
        with_gradients: averages numbers with the gradients of each step; None where nothing does.

    Attributes:
        started: whether an exchange has begun and is not read yet.
    """

    def __init__(
        self,
        ranks: Ranks,
        world: World,
        device: torch.device,
        *,
        has_loss: bool,
        with_gradients: GradientNumbers | None = None,
    ):
        mesh = world.mesh
        sends = has_loss and world.coordinate("tp") == 0
        self._share = 1 / (mesh.data_parallel * mesh.cp) if sends else 0.0
        self._ranks, self._device, self._pipeline = ranks, device, mesh.pp > 1
        self._names: list[str] | None = None
        self._backend = backend_of(device)
        self._words: list[Tensor] = []  # in host memory that the device reads by itself
        self._number = 0
        self._with_gradients = with_gradients
        self._running: tuple[Tensor, dist.Work] | None = None
        self._put = False

    @property
    def started(self) -> bool:
        return self._running is not None or self._put

    def start(self, loss: Tensor, parts: LossParts, word: Word) -> None:
        """Begins the exchange of a step. All ranks call it at the same place among their collectives."""
        if self._names is None:
            self._names = self._agreed_names(parts)
        own = [loss, *(parts.get(name, _MISSING) for name in self._names)]
        if self._backend.is_host:
            shares = [self._share * value.item() if self._share else 0.0 for value in own]
            shared = [shares[0], *word, *shares[1:]]
            if self._with_gradients is not None:
                self._with_gradients.put(shared)
                self._put = True
                return
            numbers = torch.tensor(shared, dtype=torch.float64)
        else:
            values = torch.stack([value.detach().reshape(()).float().to(self._device) for value in own])
            values = values * self._share if self._share else torch.zeros_like(values)
            numbers = torch.cat([values[:1], self._on_device(word), values[1:]])
        work = dist.all_reduce(numbers, async_op=True)
        assert work is not None
        self._running = numbers, work

    def read(self) -> tuple[Tensor, Tensor, LossParts]:
        """The loss, the WORDS numbers of the word and the named parts of all ranks; a device waits, not its host."""
        assert self._names is not None
        numbers = self._ended()
        word_ends = 1 + WORDS
        return numbers[0], numbers[1:word_ends], dict(zip(self._names, numbers[word_ends:], strict=True))

    def as_numbers(self) -> tuple[float, Word, dict[str, float]]:
        """The same as numbers, which the host waits for."""
        assert self._names is not None
        loss, *numbers = self._ended().tolist()
        return loss, word_of(numbers), dict(zip(self._names, numbers[WORDS:], strict=True))

    def _ended(self) -> Tensor:
        """The numbers of all ranks, added up; to be read before the next step."""
        if self._put:
            assert self._with_gradients is not None
            self._put = False
            return self._with_gradients.take()
        assert self._running is not None
        (numbers, work), self._running = self._running, None
        work.wait()
        return numbers

    def _on_device(self, word: Word) -> Tensor:
        if not self._words:
            self._words = [self._backend.pinned(torch.zeros(WORDS)) for _ in range(_IN_FLIGHT)]
        self._number = (self._number + 1) % _IN_FLIGHT
        host = self._words[self._number]
        for index, value in enumerate(word):
            host[index] = value
        return host.to(self._device, non_blocking=self._backend.non_blocking)

    def _agreed_names(self, parts: LossParts) -> list[str]:
        """The parts that the losses of all ranks have in the first step: a collective has one size."""
        if self._pipeline:
            return []
        names = self._ranks.gathered("parts of the loss", sorted(parts), within_s=WITHIN_S)
        sets = [{str(name) for name in names_of_rank} for names_of_rank in names if isinstance(names_of_rank, list)]
        return sorted(set.intersection(*sets))


_MISSING = torch.tensor(math.nan)


def word_of(numbers: Sequence[float]) -> Word:
    """The word of all ranks, from its numbers."""
    return Word(*numbers[:WORDS])
