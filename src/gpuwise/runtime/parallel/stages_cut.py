"""Where a model is cut into stages: at its repeated blocks, balanced by the operations of matrix products."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from gpuwise.errors import InputError, UnsupportedError
from gpuwise.runtime.parallel.stages_absent import WAYS
from gpuwise.runtime.parallel.stages_flow import Flow
from gpuwise.trace.parallel.balance import balanced


@dataclass(frozen=True)
class Cut:
    """A model in stages, each with at least one block.

    Attributes:
        blocks: paths of the blocks, in the order in which they run.
        first: number of each stage's first block.
        owners: stages that read each parameter and each buffer that depends on parameters, by name.
    """

    blocks: tuple[str, ...]
    first: tuple[int, ...]
    owners: dict[str, tuple[int, ...]]

    @property
    def stages(self) -> int:
        return len(self.first)

    def stage_at(self, time: int) -> int:
        """The stage that runs what follows the first `time` blocks' entries."""
        return bisect_right(self.first, max(time - 1, 0)) - 1

    def blocks_of(self, stage: int) -> tuple[str, ...]:
        end = self.first[stage + 1] if stage + 1 < self.stages else len(self.blocks)
        return self.blocks[self.first[stage] : end]


def cut_at(flow: Flow, stages: int, names: Sequence[tuple[str, ...]]) -> Cut:
    """The balanced cut of a model.

    Arguments:
        flow: of a dry run of the model.
        stages: number of stages.
        names: parameters and buffers that depend on parameters, each with all of its names.

    Raises InputError for more stages than blocks, UnsupportedError where stages would need more from each other than
    what blocks take as arguments.
    """
    blocks = tuple(call.path for call in flow.blocks)
    check_blocks(len(blocks), stages)
    costs = [max(flow.flops[time], 1) for time in range(1, len(blocks) + 1)]
    costs[0] += flow.flops[0]
    plain = Cut(blocks, balanced(costs, stages), {})
    owners = _owners(flow, plain, names)
    cut = Cut(blocks, plain.first, owners)
    check_cut(flow, cut)
    return cut


def check_blocks(blocks: int, stages: int) -> None:
    """Raises InputError for more stages than repeated blocks."""
    if blocks < stages:
        raise InputError(
            f"the model has {blocks} repeated blocks, fewer than the {stages} stages of the pipeline.",
            ["a smaller pp or fewer stages a rank", "group the layers in a torch.nn.ModuleList or Sequential"],
        )


def _owners(flow: Flow, cut: Cut, names: Sequence[tuple[str, ...]]) -> dict[str, tuple[int, ...]]:
    stage_of_block = {f"{path}.": cut.stage_at(number + 1) for number, path in enumerate(cut.blocks)}
    owners: dict[str, tuple[int, ...]] = {}
    for aliases in names:
        homes = {stage for name in aliases for path, stage in stage_of_block.items() if name.startswith(path)}
        used = homes | {cut.stage_at(time) for name in aliases for time in flow.uses.get(name, ())} or {0}
        if homes and len(used) > 1:
            raise UnsupportedError(
                f"{aliases[0]} belongs to a block of one pipeline stage and is used by another.",
                ["a smaller pp, so that one stage has both", *WAYS],
            )
        owners |= dict.fromkeys(aliases, tuple(sorted(used)))
    return owners


def check_cut(flow: Flow, cut: Cut) -> None:
    """Raises UnsupportedError where a stage needs a tensor of an earlier one that is no argument of its first block."""
    last = cut.stages - 1
    for time, name in flow.shared_draws:
        if cut.stage_at(time) < last:
            raise UnsupportedError(
                f"the model draws random numbers between its blocks ({name}), and stages would draw different ones.", WAYS
            )
    # Stages that have the values of each tensor. Parameters, 0, are with the stages that use them.
    having: dict[int, frozenset[int]] = {0: frozenset(range(cut.stages))}
    operations = iter(flow.operations)
    waiting = next(operations, None)
    problem = ""
    for time in range(len(cut.blocks) + 1):
        stage = cut.stage_at(time)
        if time > 1 and time - 1 in cut.first:  # the entry of a stage's first block
            for number in flow.blocks[time - 1].tensors:
                if stage - 1 not in having[number]:
                    raise _skips(flow.blocks[time - 1].path, problem)
                having[number] |= {stage}
        while waiting is not None and waiting.time == time:
            ready = all(stage in having[number] for number in waiting.reads)
            problem = problem or ("" if ready else waiting.name)
            if any(stage not in having[number] for number in waiting.writes):
                raise UnsupportedError(f"a stage changes a tensor of another stage in place ({waiting.name}).", WAYS)
            having |= dict.fromkeys(waiting.gives, frozenset({stage} if ready else ()))
            waiting = next(operations, None)
    if any(last not in having[number] for number in flow.returned):
        raise _skips("the result", problem)


def check_trained(model: nn.Module, cut: Cut) -> None:
    """Raises UnsupportedError for a stage without a parameter to train, which no backward pass would reach."""
    trained = {stage for name, p in model.named_parameters() if p.requires_grad for stage in cut.owners[name]}
    for stage in range(cut.stages):
        if stage not in trained:
            raise UnsupportedError(
                f"pipeline stage {stage} of {cut.stages}, from {cut.blocks_of(stage)[0]} on, has no parameter that requires a "
                f"gradient.",
                ["a smaller pp", *WAYS],
            )


def _skips(what: str, operator: str) -> UnsupportedError:
    return UnsupportedError(
        f"{what} needs a tensor that an earlier pipeline stage computed and that is no argument of the stage's first block"
        f"{f' (in {operator})' if operator else ''}: a skip connection over stages, or a loss of the blocks.",
        ["pass it through the blocks as an argument and a result", *WAYS],
    )
