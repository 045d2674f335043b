"""The state of a run: taken from its parts to be saved, and put back into them to go on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypedDict, cast

import torch
import torch.distributed as dist

from gpuwise.runtime.build.buffers import sound_buffers
from gpuwise.runtime.build.names import plain_name
from gpuwise.runtime.build.program import Program
from gpuwise.runtime.checkpoint import Checkpoint
from gpuwise.runtime.checkpoint.program_state import ProgramState, load_program, program_state
from gpuwise.runtime.data import MicroBatchLoader
from gpuwise.runtime.data.draws import seed_of
from gpuwise.runtime.data.loader import LoaderState
from gpuwise.runtime.devices.random_state import seed_everything
from gpuwise.runtime.health import LossWatch
from gpuwise.runtime.health.losses import LossWatchState
from gpuwise.runtime.run.evaluation import Evaluations, EvaluationsState


class SavedRun(TypedDict):
    """The state of a run in a checkpoint, besides its program."""

    first_loss: float
    last_loss: float
    spent_s: float
    data: LoaderState
    evaluations: EvaluationsState
    losses: LossWatchState


@dataclass
class LossHistory:
    """The history of a run's losses.

    Attributes:
        watch: counts non-finite losses and spikes.
        first: first finite loss; NaN before it.
        last: latest finite loss; NaN before the first.
    """

    watch: LossWatch
    first: float = field(default=math.nan)
    last: float = field(default=math.nan)


class RunState:
    """All that the next step depends on, and what is told of the steps before it. To be made before anything is trained."""

    def __init__(self, program: Program, loader: MicroBatchLoader, evaluations: Evaluations, losses: LossHistory):
        self.program, self.loader, self.evaluations, self.losses = program, loader, evaluations, losses
        self._finite_buffers = sound_buffers(program.model)

    def state(self, *, spent_s: float) -> dict[str, object]:
        """To be saved. Tensors are the program's own, not copies.

        Arguments:
            spent_s: seconds of the run so far.
        """
        run: SavedRun = {
            "first_loss": self.losses.first,
            "last_loss": self.losses.last,
            "spent_s": spent_s,
            "data": self.loader.state(),
            "evaluations": self.evaluations.state(),
            "losses": self.losses.watch.state(),
        }
        return {**program_state(self.program), "run": run}

    def load(self, checkpoint: Checkpoint) -> float:
        """Puts the state back. Returns the seconds that were spent before.

        Raises as Checkpoint.load does, and InputError or JobError where it is the state of something else.
        """
        world = self.program.world
        state = checkpoint.load() if world is None else checkpoint.open(rank=world.rank)
        run = cast(SavedRun, state.pop("run"))
        same_mesh = checkpoint.manifest.mesh == str(self.program.strategy.mesh)
        if not same_mesh:
            state.pop("random", None)
        load_program(self.program, cast(ProgramState, state))
        if not same_mesh:
            at = (0, 0) if world is None else (world.data_rank, world.coordinate("cp"))  # as seed_rank has it
            seed_everything(seed_of(self.loader.seed, checkpoint.step, *at))
        self.loader.load(run["data"])
        self.evaluations.load(run["evaluations"], checkpoint.step)
        self.losses.watch.load(run["losses"])
        self.losses.first, self.losses.last = run["first_loss"], run["last_loss"]
        return run["spent_s"]

    def not_finite(self) -> str | None:
        """What of the weights is no longer finite, as a clause. A buffer that was not finite from the start is the model's own
        way. Several ranks call it at once, and all hear of what one has."""
        if not self.program.parameters_are_finite():
            return "its parameters are no longer finite numbers"
        finite = set(sound_buffers(self.program.model, self._finite_buffers))
        broken = [plain_name(name) for name in self._finite_buffers if name not in finite]
        if not self._any_rank(bool(broken)):
            return None
        return f"no longer finite numbers are in its buffers {', '.join(broken[:5]) or 'on another rank'}"

    def _any_rank(self, value: bool) -> bool:
        """Whether it is true on any rank."""
        if self.program.world is None:
            return value
        flag = torch.tensor(float(value), device=self.program.device)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag)
