"""Sums of a tied weight's gradients, in place as recorded and apart as ends of a pipeline and replicas have them."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwise.trace import Trace, TraceFamily
from gpuwise.trace.memory import live_bytes
from gpuwise.trace.parallel.blocks import full_gradients
from gpuwise.trace.parallel.tied import sums_in_place, with_sums_apart
from gpuwise.trace.presets import load_preset
from gpuwise.trace.tables import CATEGORIES

_GRADIENT = CATEGORIES.index("gradient")


def step(name: str, precision: str) -> Trace:
    family = load_preset(name, precision=precision)
    assert isinstance(family, TraceFamily)
    return family.at(micro_batch=2, seq_len=128)


# Under autocast the head's gradient is a cast of its own; without, a view of a product that autograd does not add to.
@pytest.mark.parametrize(
    ("name", "precision", "modules"),
    [
        ("gpt2", "amp-bf16", ["words"]),
        ("bert-base", "amp-bf16", ["words"]),
        ("t5-base", "amp-bf16", ["decoder", "encoder"]),
        ("t5-base", "fp32", ["encoder"]),
        ("gpt2", "fp32", []),
        ("llama2-7b", "amp-bf16", []),
    ],
)
def test_each_micro_batch_adds_the_later_gradients_of_a_tied_weight_in_place(
    name: str, precision: str, modules: list[str]
) -> None:
    trace = step(name, precision)
    sums = sums_in_place(trace)
    places = [
        (int(trace.sequence.micro_step[one.position]), trace.modules[trace.sequence.module[one.position]]) for one in sums
    ]
    assert places == [(micro_step, module) for micro_step in (0, 1) for module in modules]
    of_part, of_total = (trace.storages.size_bytes[[getattr(one, name) for one in sums]] for name in ("part", "total"))
    assert (of_part == of_total).all()


def test_sums_apart_are_as_many_gradients_in_as_much_memory() -> None:
    trace = step("t5-base", "amp-bf16")
    apart = with_sums_apart(trace)
    assert len(apart.storages) == len(trace.storages) + len(sums_in_place(trace))
    gradients = [int((one.storages.category == _GRADIENT).sum()) for one in (trace, apart)]
    assert gradients[0] == gradients[1]
    # Only where a sum is made are there three tensors, not two.
    more = max(int(trace.storages.size_bytes[one.total]) for one in sums_in_place(trace))
    assert 0 <= live_bytes(apart).peak_bytes - live_bytes(trace).peak_bytes <= more
    assert with_sums_apart(step("gpt2", "fp32")) is not None


def test_a_gradient_of_the_second_micro_batch_is_full_once() -> None:
    """What is added to another gradient of the same micro-batch is none of those that shards reduce."""
    trace = step("gpt2", "amp-bf16")
    storages = trace.storages
    largest = int(storages.size_bytes[storages.category == _GRADIENT].max())
    for micro_step in (0, 1):
        rows = full_gradients(trace, micro_step)
        assert np.count_nonzero(storages.size_bytes[rows] == largest) == 1
        assert len(rows) == np.count_nonzero(storages.category == _GRADIENT)
