"""Products of groups of rows, of which Hugging Face's mixtures of experts consist: shapes and operations of plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.dist.hub_jobs import hub_job
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gpuwise.runtime.build.program import build
from gpuwise.runtime.parallel.grouped_mm import empty_grouped_mm
from gpuwise.strategy import Strategy
from gpuwise.tracing import record

ENDS = torch.tensor([8, 8, 24, 32], dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("a", "b", "ends"),
    [((32, 16), (4, 16, 8), ENDS), ((16, 32), (32, 8), ENDS), ((4, 8, 16), (16, 32), ENDS), ((4, 8, 16), (4, 16, 24), None)],
    ids=["rows", "inner", "columns", "batches"],
)
def test_the_empty_result_is_that_of_the_kernel(
    a: tuple[int, ...], b: tuple[int, ...], ends: Tensor | None, dtype: torch.dtype
):
    mat_a, mat_b = torch.randn(a, dtype=dtype), torch.randn(*b[:-2], b[-1], b[-2], dtype=dtype).transpose(-1, -2)
    expected = torch._grouped_mm(mat_a, mat_b, ends)
    empty = empty_grouped_mm(mat_a, mat_b, ends)
    assert (empty.shape, empty.stride(), empty.dtype) == (expected.shape, expected.stride(), expected.dtype)


class Products(TorchDispatchMode):
    """Floating-point operations and dtypes of the products that a program runs, group by group."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[int, torch.dtype]] = []

    def __torch_dispatch__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._grouped_mm.default:
            a, b = args[:2]
            ends = (args[2] if len(args) > 2 else kwargs["offs"]).tolist()
            groups = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
            others = [a.shape[0], b.shape[1]] if b.dim() == 2 else [b.shape[1], b.shape[2]]
            self.calls.append((sum(2 * size * others[0] * others[1] for size in groups), a.dtype))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("precision", ["fp32", "amp-bf16"])
def test_a_mixture_is_recorded_as_it_runs(precision: str):
    job, strategy = hub_job("Mixtral"), Strategy(micro_batch=2, precision=precision)
    program = build(job, strategy, "cpu")
    with Products() as products:
        program.step([job.batch(2)])
    trace = record(job, strategy)
    first = trace.sequence.operation[trace.sequence.micro_step == 0].tolist()
    rows = [row for row in first if "_grouped_mm" in trace.operations.name[row]]
    recorded = [(int(trace.operations.column("flops")[row]), trace.operations.dtype[row]) for row in rows]
    assert products.calls
    assert recorded == [(flops, str(dtype).removeprefix("torch.")) for flops, dtype in products.calls]
