"""Whatever a state holds comes back from the disk bit for bit."""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fault.checkpoint_faults import Quick, same

from gpuwise.errors import FileFormatError
from gpuwise.runtime.checkpoint import CheckpointStore, Saver, pack, unpack

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.uint64,
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
]
SHAPES = [(), (1,), (0,), (3,), (2, 3), (3, 0, 2), (2, 3, 4, 5), (1, 3, 1, 2)]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Random bits of any dtype, laid out in any way."""
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(SHAPES))
    layout = draw(st.sampled_from(["contiguous", "permuted", "sliced", "expanded", "parameter"]))
    count = int(np.prod(shape)) * dtype.itemsize
    data = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).integers(
        0, 2 if dtype is torch.bool else 256, count, np.uint8
    )
    tensor = torch.from_numpy(data).view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)
    if layout == "permuted":
        return tensor.permute(draw(st.permutations(range(tensor.dim()))))
    if layout == "sliced" and tensor.dim():
        return tensor[..., ::2]
    if layout == "expanded":
        return tensor.expand(2, *shape)
    if layout == "parameter" and dtype.is_floating_point and dtype.itemsize > 1:
        return torch.nn.Parameter(tensor).detach()
    return tensor


arrays = st.builds(
    lambda dtype, shape, seed: np.random.default_rng(seed).integers(0, 100, shape).astype(dtype),
    st.sampled_from(["<f8", "<f4", "<f2", "<i8", "<u4", "|b1", "<c16", ">f4", ">i2"]),
    st.sampled_from([(), (0,), (4,), (2, 3)]),
    st.integers(0, 1000),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**200), 2**200),
    st.floats(),
    st.text(st.characters(codec=None), max_size=9),
    st.binary(max_size=9),
    st.sampled_from([np.float32(1.5), np.float64("nan"), np.int8(-3), np.bool_(True), torch.bfloat16]),
)
keys = st.one_of(st.text(max_size=5), st.integers(-5, 5), st.sampled_from(["a.b", "a", "$tensor", "$", "__metadata__", "b#2"]))
trees = st.recursive(
    st.one_of(scalars, tensors(), arrays),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.lists(inner, max_size=3).map(tuple), st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=12,
)
states = st.dictionaries(st.sampled_from(["model", "optimizer", "ema", "rest_2"]), trees, max_size=4)


@given(states)
@settings(deadline=None, max_examples=60)
def test_a_state_comes_back_from_the_disk(state: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        saver = Saver(CheckpointStore(folder, files=Quick()))
        saver.begin(1, state)
        saver.finish()
        latest = CheckpointStore(folder).latest()
        assert latest is not None
        assert same(latest.load(), state)


@given(states)
@settings(deadline=None, max_examples=30)
def test_tensors_that_are_the_same_are_written_once_and_come_back_as_one(state: dict[str, Any]) -> None:
    shared = torch.arange(6.0).reshape(2, 3)
    packed = pack({**state, "model": {"one": shared, "two": [shared, state], "view": shared[:1]}})
    assert [name for name, tensor in packed.tensors["model"].items() if tensor.data_ptr() == shared.data_ptr()] == [
        "one",
        "view",
    ]
    model = unpack(packed.structure, packed.tensors)["model"]
    assert model["one"] is model["two"][0]
    assert model["view"].equal(shared[:1])


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.builds(
            lambda kind, content: {kind: content},
            st.sampled_from("$tensor $array $wrapped $number $bytes $dtype $float $dict $tuple $none".split()),
            inner,
        ),
    ),
    max_leaves=15,
)


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=3))
@settings(deadline=None)
def test_any_other_structure_is_a_state_or_exactly_this_error(structure: dict[str, Any]) -> None:
    with suppress(FileFormatError):
        unpack(json.loads(json.dumps(structure)), {"model": {"a": torch.zeros(3, dtype=torch.uint8)}})


@pytest.mark.parametrize(
    "how",
    [
        {"order": [0, 0]},
        {"order": 3},
        {"order": [5]},
        {"dtype": "float128", "shape": [1]},
        {"dtype": "float64", "shape": [1]},
        {"dtype": "complex64", "shape": [2, 10**18]},
    ],
)
def test_a_tensor_that_makes_no_sense_is_refused(how: Any) -> None:
    with pytest.raises(FileFormatError):
        unpack({"a": {"$tensor": ["model", "a", how]}}, {"model": {"a": torch.zeros(3, dtype=torch.uint8)}})
