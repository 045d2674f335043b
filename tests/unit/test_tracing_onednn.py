"""Which kernels oneDNN takes for a convolution, against the names it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping

import pytest
import torch

from gpuwise.tracing.kernels import instruction_sets
from gpuwise.tracing.kernels.instruction_sets import has_tiles, vector_floats
from gpuwise.tracing.kernels.onednn import Convolution

# samples, channels in, out, groups, side, kernel, stride, padding, dilation: small images, wide kernels, odd channels, groups
SHAPES = [
    (n, channels, out, groups, side, kernel, stride, padding, dilation)
    for n, side in ((2, 1), (2, 2), (3, 7), (2, 14))
    for channels, out, groups in (
        (1, 8, 1),
        (3, 64, 1),
        (4, 10, 1),
        (12, 32, 1),
        (24, 40, 1),
        (64, 64, 1),
        (32, 32, 32),
        (32, 64, 4),
        (16, 64, 4),
        (20, 60, 2),
    )
    for kernel, stride, padding in ((1, 1, 0), (1, 2, 0), (3, 1, 1), (3, 2, 1), (5, 1, 2), (7, 2, 3), (9, 1, 4), (4, 4, 0))
    for dilation in (1, 2)
    if side + 2 * padding >= dilation * (kernel - 1) + 1 and side >= stride
]
PROGRAM = """
import torch
from test_tracing_onednn import SHAPES
torch.set_num_threads(1)
for n, channels, out, groups, side, kernel, stride, padding, dilation in SHAPES:
    x, weight = torch.zeros(n, channels, side, side), torch.zeros(out, channels // groups, kernel, kernel)
    options = [[stride] * 2, [padding] * 2, [dilation] * 2, False, [0, 0], groups]
    print("shape", flush=True)
    y = torch.ops.aten.convolution(x, weight, None, *options)
    torch.ops.aten.convolution_backward(y, x, weight, [0], *options, [False, True, False])
"""


@pytest.fixture(autouse=True)
def anew():
    for known in (vector_floats, has_tiles):
        known.cache_clear()
    yield
    for known in (vector_floats, has_tiles):
        known.cache_clear()


def printed_blocks(environment: Mapping[str, str]) -> list[dict[str, int]]:
    """Channels of a block in the layout of the result, by direction, for each shape; 0 where matrices are multiplied."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={
            **os.environ,
            **environment,
            "ONEDNN_VERBOSE": "1",
            "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path]),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    blocks: list[dict[str, int]] = []
    for line in done.stdout.splitlines():
        if line == "shape":
            blocks.append({})
        elif ",exec,cpu,convolution," in line:
            kernel, direction, layouts = line.split(",exec,cpu,convolution,")[1].split(",")[:3]
            block = re.search(r"aBcd(\d+)b", layouts.split()[-1])
            blocks[-1][direction] = int(block[1]) if block and "gemm" not in kernel else 0
    return blocks


@pytest.mark.parametrize("limit", ["AVX2", "AVX512_CORE"])
@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")
def test_kernels_are_those_onednn_names(limit: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    if limit == "AVX512_CORE" and vector_floats() == 8:
        pytest.skip("this processor has no AVX-512")
    wrong, compared = [], 0
    for shape, real in zip(SHAPES, printed_blocks({"ONEDNN_MAX_CPU_ISA": limit}), strict=True):
        n, channels, out, groups, side, kernel, stride, padding, dilation = shape
        side_out = (side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        one = Convolution(
            n,
            channels,
            out,
            groups,
            (side,) * 2,
            (side_out,) * 2,
            (kernel,) * 2,
            (stride,) * 2,
            (padding,) * 2,
            (dilation,) * 2,
            4,
            False,
            False,
            1,
            vector_floats(),
        )
        for direction, block in (("forward_training", one.forward_block), ("backward_weights", one.weights_block)):
            compared += direction in real
            if real.get(direction, block) != block:
                wrong.append((direction, shape, block, real[direction]))
    assert compared > 600
    assert not wrong, (len(wrong), wrong[:5])


@pytest.mark.parametrize(
    ("limits", "flags", "floats", "tiles"),
    [
        ({}, ("avx2",), 8, False),
        ({}, ("avx2", "avx512"), 16, False),
        ({}, ("avx2", "avx512-halved", "avx512-bf16"), 16, False),
        ({}, ("avx2", "avx512", "amx-bf16"), 16, True),
        ({"ONEDNN_MAX_CPU_ISA": "avx2"}, ("avx2", "avx512", "amx-bf16"), 8, False),
        ({"DNNL_MAX_CPU_ISA": "AVX2_VNNI_2"}, ("avx2", "avx512"), 8, False),
        ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "DNNL_MAX_CPU_ISA": "AVX2"}, ("avx2", "avx512", "amx-bf16"), 16, False),
        ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX"}, ("avx2", "avx512", "amx-bf16"), 16, True),
        ({"ONEDNN_MAX_CPU_ISA": "nonsense"}, ("avx2", "avx512"), 16, False),
        ({}, ("neon", "sve"), 8, False),
    ],
)
def test_the_instruction_set_in_use(
    limits: dict[str, str], flags: tuple[str, ...], floats: int, tiles: bool, monkeypatch: pytest.MonkeyPatch
):
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in limits.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(instruction_sets, "detect_cpu", lambda: type("Cpu", (), {"flags": flags}))
    assert (vector_floats(), has_tiles()) == (floats, tiles)
