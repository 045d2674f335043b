"""JobArrays: the blocks of a job under many variants as arrays, an index for each variant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np

from gpuwise.errors import InputError, UnsupportedError
from gpuwise.hardware.types import Chip
from gpuwise.plan.compose.blocks import JobBlocks
from gpuwise.plan.compose.lives import Lives
from gpuwise.plan.compose.parts import CELLS
from gpuwise.plan.compose.shallow import AFTER_BLOCKS, BEFORE_BLOCKS
from gpuwise.plan.compose.variant import BlockVariant
from gpuwise.plan.compose.workload import Workload
from gpuwise.plan.pricing.traces import NOT_TRACED
from gpuwise.plan.space.layouts import ModelLimits
from gpuwise.trace.parallel.experts import experts_of
from gpuwise.trace.tables import PHASES

_FORWARD = PHASES.index("forward")


# Tokens of a sequence that each rank of cp has at least. Parts of shorter sequences save what a smaller micro-batch, recompute
# or tensor parallelism save, too; neighbours of the best strategy try them (gpuwise.plan.space.neighbours).
LEAST_PART = 8192
SHORTEST_PART = 512  # where nothing fits: shorter parts leave most of a GPU idle

# What lives in a rank that has all of the model, in one whose gradients leave with a block's backward, in the last rank of a
# pipeline and in its others, which hold a weight that both ends share in another way.
LIVES = ("whole", "freed", "last", "others")
WHOLE, FREED, LAST, OTHERS = range(len(LIVES))


class Variants(Protocol):
    """The variants of blocks to try under a degree of tensor parallelism. seq_len: None where the model has no sequences."""

    def __call__(self, recomputes: Sequence[str], *, tp: int, seq_len: int | None) -> tuple[BlockVariant, ...]: ...


class BlockPart(NamedTuple):
    """Which part of a block a rank runs. sharded: whether fully_shard runs the step."""

    tp: int
    cp: int
    ep: int
    sharded: bool


class Entry(NamedTuple):
    """A variant of blocks on one of tp ranks. sharded: whether fully_shard runs the step."""

    tp: int
    sharded: bool
    variant: BlockVariant

    @property
    def part(self) -> BlockPart:
        return BlockPart(self.tp, self.variant.cp, self.variant.ep, self.sharded)


class JobArrays:
    """The blocks of a job; arrays have an axis of entries. What lives in them has one of LIVES before it.

    Arguments:
        blocks: of the job.
        needed: parts of blocks that ranks run.
        recomputes: those to try.
        variants: of blocks, that are tried; None takes all, `variants_of`.

    Entries that cannot be traced are left out, and the reason goes to the blocks' problems. Raises the first error where all
    of them cannot.
    """

    def __init__(
        self,
        blocks: JobBlocks,
        *,
        needed: Iterable[BlockPart],
        recomputes: Sequence[str],
        variants: Variants | None = None,
    ):
        self.blocks = blocks
        seq_len = blocks.whole.header.sizes.get("seq_len")
        self.entries = _traced(
            blocks,
            [
                Entry(tp, sharded, replace(variant, cp=cp, ep=ep))
                for tp, cp, ep, sharded in needed
                for variant in (variants or variants_of)(recomputes, tp=tp, seq_len=seq_len // cp if seq_len else None)
            ],
        )
        rows = [blocks.rows(entry.variant, tp=entry.tp, sharded=entry.sharded) for entry in self.entries]
        self._workload = Workload([one.parts.work for one in rows], precision=blocks.techniques.precision)
        self.payload_bytes = np.stack([one.payload_bytes for one in rows])
        self.calls = np.stack([one.calls for one in rows])
        self.block_bytes = np.stack([one.block_bytes for one in rows])
        self.block_calls = np.stack([one.block_calls for one in rows])
        self.send_bytes = np.stack([one.send_bytes for one in rows])
        figures = blocks.parameters
        each_s = np.array([figures.host_operation_s[phase] for phase in PHASES[:-1]])[:, None]
        launches = [one.parts.calls * each_s + one.parts.kernels * figures.host_kernel_s for one in rows]
        self.launch_s = np.stack(launches).sum(axis=2)  # of each section and micro-step
        of_kinds = [_lives(blocks, entry) for entry in self.entries]
        lives = [[of_entry[kind] for of_entry in of_kinds] for kind in range(len(LIVES))]
        for name in ("saved", "kept", "gradients", "peaks", "inputs", "received_forward", "received_backward", "gathered"):
            setattr(self, name, np.array([[getattr(one, name) for one in row] for row in lives]))
        self._add_holdings()

    saved: np.ndarray
    kept: np.ndarray
    gradients: np.ndarray
    peaks: np.ndarray
    inputs: np.ndarray
    received_forward: np.ndarray
    received_backward: np.ndarray
    gathered: np.ndarray

    def _add_holdings(self) -> None:
        own = [(entry.tp, entry.sharded, entry.variant.ep) for entry in self.entries]
        whole = [(tp, sharded, 1) for tp, sharded, _ in own]
        keys = list(dict.fromkeys([*whole, *own]))
        of_holdings = [self.blocks.holdings(tp=tp, sharded=sharded, ep=ep) for tp, sharded, ep in keys]
        sizes = [self.blocks.element_bytes(sharded=sharded) for _, sharded, _ in keys]
        # What a rank gathers and updates; and what all shards hold, the experts of all ranks among it.
        self.holding, self.whole_holding = (np.array([keys.index(key) for key in some]) for some in (own, whole))
        self._section_bytes = np.array(
            [[one.parameter_bytes for one, _ in of_holdings], [one.gradient_bytes for one, _ in of_holdings]]
        )
        self._tied_bytes = np.array(
            [[one.tied_bytes for one, _ in of_holdings], [one.tied_gradient_bytes for one, _ in of_holdings]]
        )
        self._section_tensors = np.array([one.tensors for one, _ in of_holdings])
        self._tied_tensors = np.array([one.tied_tensors for one, _ in of_holdings])
        self.updates = [update for _, update in of_holdings]
        states = [update.cost((0.0, 0.0)).state_bytes for update in self.updates]
        self.state_bytes = np.array([[one.base for one in states], [one.each for one in states]])
        self.element_bytes, self.widened = (np.array(column, dtype=np.float64) for column in zip(*sizes, strict=True))
        self._update_load = Workload(
            [work for update in self.updates for work in update.works], precision=self.blocks.techniques.precision
        )

    def held_bytes(self, holding: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bytes of parameters and of gradients of ranks with so many of each section, see Holdings.of_ranks.

        Arguments:
            holding: of each row.
            weights: shape (ranks, rows, sections).
        """
        both = (weights[..., BEFORE_BLOCKS] > 0) & (weights[..., AFTER_BLOCKS] > 0)
        parameter, gradient = (
            (weights * of_sections[holding]).sum(axis=-1) - both * tied[holding]
            for of_sections, tied in zip(self._section_bytes, self._tied_bytes, strict=True)
        )
        return parameter, gradient

    def held_tensors(self, holding: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Number of gradients of such ranks. Arguments as for held_bytes."""
        both = (weights[..., BEFORE_BLOCKS] > 0) & (weights[..., AFTER_BLOCKS] > 0)
        result: np.ndarray = (weights * self._section_tensors[holding]).sum(axis=-1) - both * self._tied_tensors[holding]
        return result

    def batch_s(self, chip: Chip) -> np.ndarray:
        """Seconds of forward and of backward with what it computes again. Raises UnsupportedError as Workload does.

        Shape (2, micro-steps, sections, entries, micro-batches).
        """
        seconds = np.stack(self._workload.seconds(chip, self.blocks.parameters)).reshape(len(self.entries), -1, *CELLS)
        forward = seconds[:, :, :, _FORWARD]
        return np.stack([forward, seconds.sum(axis=3) - forward]).transpose(0, 4, 3, 1, 2)

    def update_s(self, chip: Chip) -> np.ndarray:
        """Seconds of the update of each of `updates`: what is fixed, and each element. Shape (2, updates)."""
        each = [float(part.sum()) for part in self._update_load.seconds(chip, self.blocks.parameters)]
        costs = [update.cost(each[2 * row : 2 * row + 2]).device_s for row, update in enumerate(self.updates)]
        return np.array([[cost.base for cost in costs], [cost.each for cost in costs]])


def _traced(blocks: JobBlocks, entries: Sequence[Entry]) -> list[Entry]:
    """The entries that can be traced. Raises the first error where there are none."""
    traced, problem = [], None
    for entry in entries:
        try:
            blocks.rows(entry.variant, tp=entry.tp, sharded=entry.sharded)
        except NOT_TRACED as error:
            problem = problem or error
            blocks.problems[error.what] = None
        else:
            traced.append(entry)
    if problem is not None and not traced:
        raise problem
    return traced


def _lives(blocks: JobBlocks, entry: Entry) -> tuple[Lives, Lives, Lives, Lives]:
    """What lives in an entry's blocks, by LIVES."""
    whole, freed = (
        blocks.lives(entry.variant, tp=entry.tp, sharded=entry.sharded, freed=freed and entry.sharded)
        for freed in (False, True)
    )
    return whole, freed, whole.of_last or whole, whole.of_others or whole


def limits_of(blocks: JobBlocks, most_tensor: int, *, least_part: int = LEAST_PART) -> ModelLimits:
    """The limits of a job's model.

    Arguments:
        most_tensor: the highest degree of tensor parallelism, as of the devices of a machine.
        least_part: tokens that each context-parallel rank has of a sequence at least.
    """
    degrees = [1]
    for tp in blocks.tensor_degrees(most_tensor):
        try:
            blocks.rows(BlockVariant(), tp=tp, sharded=False)
        except UnsupportedError as error:
            blocks.problems[error.what] = None
        except InputError:  # it does not divide heads or features
            continue
        else:
            degrees.append(tp)
    seq_len = blocks.whole.header.sizes.get("seq_len")
    parts = [2**n for n in range(1, ((seq_len or 0) // least_part).bit_length())]
    context = tuple(cp for cp in parts if blocks.divides_sequences(cp))
    experts = experts_of(blocks.whole)
    of_experts = tuple(ep for ep in range(2, experts + 1) if experts % ep == 0)
    return ModelLimits(len(blocks.whole.header.blocks), tuple(degrees), seq_len, (1, *context), (1, *of_experts))


def variants_of(
    recomputes: Sequence[str], *, tp: int, seq_len: int | None, cp: int = 1, ep: int = 1
) -> tuple[BlockVariant, ...]:
    """The variants of blocks under degrees of parallelism. seq_len: of the whole sequence.

    Beside others, selective recompute is tried with sequence and loss divided where they can be: ranks send as many bytes, and
    hold and compute less.
    """
    sequence = (False, True) if tp > 1 and seq_len is not None and seq_len % (tp * cp) == 0 else (False,)
    loss = (False, True) if tp > 1 else (False,)
    return tuple(
        BlockVariant(recompute, s, p, cp, ep)
        for recompute in recomputes
        for s in sequence
        for p in loss
        if recompute != "selective" or len(recomputes) == 1 or (s, p) == (sequence[-1], loss[-1])
    )
