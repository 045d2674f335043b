"""State that cannot be saved is refused before anything is trained."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training_samples import toy, train

from gpuwise.errors import InputError
from gpuwise.runtime.checkpoint import CheckpointStore
from gpuwise.runtime.run.save_checks import rehearse_optimizer
from gpuwise.strategy import Strategy


class Odd(torch.optim.SGD):
    """Keeps something from its first step on that no file can hold; where `shape` says so, of such parameters alone."""

    def __init__(self, params: Any, shape: tuple[int, ...] | None = None):
        super().__init__(params, lr=0.1)
        self.shape, self.stepped = shape, 0

    def step(self, closure: Any = None) -> Any:
        self.stepped += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                if self.shape in (None, tuple(parameter.shape)):
                    self.state[parameter]["odd"] = {1, 2}
        return super().step(closure)


def test_an_optimizer_whose_state_cannot_be_saved_is_refused_before_the_first_step(tmp_path: Path):
    calls = []

    def loss(model: Any, batch: Any) -> Any:
        calls.append(1)
        return model(batch["x"]).square().mean()

    with pytest.raises(InputError, match=r"the job's optimizer cannot be saved: optimizer.state.0.odd is a set") as caught:
        train(toy(optimizer=Odd, loss=loss), folder=tmp_path / "run", steps=3)
    assert "--no-run keeps nothing" in caught.value.ways_out
    assert calls == []
    assert list(tmp_path.iterdir()) == []
    assert train(toy(optimizer=Odd), steps=3).steps == 3  # without a folder nothing is saved


def test_one_that_small_stand_ins_do_not_show_is_refused_in_it(tmp_path: Path):
    made = []

    def optimizer(params: Any) -> Odd:
        made.append(Odd(params, shape=(2, 4)))  # the weight of the model
        return made[-1]

    with pytest.raises(InputError, match=r"state.weight.odd is a set"):
        train(toy(optimizer=optimizer), folder=tmp_path / "run", steps=3)
    assert made[-1].stepped == 1
    assert list(tmp_path.iterdir()) == []


def test_a_rehearsal_draws_nothing_and_excuses_what_wants_true_parameters():
    def wanting(params: Any) -> Any:
        torch.rand(3), random.random()
        raise ValueError("no such parameter")

    before = torch.get_rng_state(), random.getstate()
    rehearse_optimizer(toy(optimizer=wanting), Strategy())
    rehearse_optimizer(toy(optimizer=lambda params: torch.optim.AdamW(params)), Strategy())
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_a_model_whose_state_cannot_be_saved_is_refused(tmp_path: Path):
    class Extra(torch.nn.Linear):
        def get_extra_state(self) -> Any:
            return object()

        def set_extra_state(self, state: Any) -> None:
            pass

    with pytest.raises(InputError, match=r"model\._extra_state is a object"):
        train(toy(model=lambda: Extra(4, 2)), folder=tmp_path / "run", steps=3)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rate", [torch.tensor(0.05), np.float32(0.05)])
def test_a_learning_rate_that_is_no_plain_number_costs_no_checkpoint(rate: Any, tmp_path: Path):
    """It is a part of what a checkpoint says of its run."""
    train(toy(learning_rate=rate), folder=tmp_path / "run", steps=3)
    assert [checkpoint.step for checkpoint in CheckpointStore(tmp_path / "run" / "checkpoints").all()] == [3]
