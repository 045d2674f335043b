"""The highest rate of a matrix product in each dtype: what arithmetic reaches here, beside what the datasheet promises."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from gpuwise.measure.timing import timed
from gpuwise.notes import Note
from gpuwise.notes import measuring as measuring_notes
from gpuwise.results.measurement import AchievedPeak, MeasuredRow, Timing
from gpuwise.runtime.devices import Cuda, backend_of

DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp64": torch.float64,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}
KEPT = {"int8": torch.int32, "fp8": torch.bfloat16}  # the product's dtype, where it is not that of the factors
# m, k, n, the quickest first: cubes, and products with the long side inside or outside.
SHAPES = {
    "cpu": (
        (512, 512, 512),
        (1024, 1024, 1024),
        (1024, 4096, 1024),
        (2048, 2048, 2048),
        (4096, 1024, 4096),
        (4096, 4096, 4096),
    ),
    "accelerator": (
        (2048, 2048, 2048),
        (4096, 4096, 4096),
        (4096, 8192, 4096),
        (8192, 4096, 8192),
        (8192, 8192, 8192),
        (16384, 8192, 16384),
    ),
}
TRIAL = {"cpu": (256, 256, 256), "accelerator": (1024, 1024, 1024)}
HOPELESS = 20  # times slower than fp32: computed without units of its own, number by number
FEWEST_RUNS = 12  # timed() makes at least 7 with two sets of inputs, the check 2; the rest is for making these
SETS = 2
# Half the distance of two numbers next to 1 in what the product is kept in; tf32 rounds the factors, fp8 may the sums.
ROUNDING = {
    "fp64": 2.0**-53,
    "fp32": 2.0**-24,
    "tf32": 2.0**-11,
    "fp16": 2.0**-11,
    "bf16": 2.0**-8,
    "int8": 0.0,
    "fp8": 2.0**-7,
}
_CHECKED = 8

Product = Callable[[], torch.Tensor]


class _UnableError(Exception):
    """This device or this PyTorch has no such product."""


def rows(budget_s: float, device: torch.device, say: Callable[[Note], None]) -> Iterator[MeasuredRow]:
    """Rows of group "gemm" named "product", by dtype from the smallest product to the largest that the time allows."""
    began = time.perf_counter()
    able = [name for name in DTYPES if name != "tf32" or has_tf32(device)]
    fp32_rate = None
    for index, name in enumerate(able):
        share_s = (budget_s - (time.perf_counter() - began)) / (len(able) - index)
        try:
            trial = _row(name, TRIAL[kind_of(device)], share_s / 10, device)
        except _UnableError as error:
            say(measuring_notes.no_peak(dtype=name, problem=str(error)))
            continue
        fp32_rate = trial.flops_per_s if name == "fp32" else fp32_rate
        if fp32_rate and trial.flops_per_s * HOPELESS < fp32_rate:
            say(measuring_notes.hopelessly_slow(dtype=name, times=fp32_rate / trial.flops_per_s))
            yield trial
            continue
        yield from _sweep(name, trial, 0.9 * share_s, device, say)


def peaks(rows: Sequence[MeasuredRow]) -> list[AchievedPeak]:
    """The best product of each dtype, highest first, at the 10th percentile of its times: a ceiling is what nobody disturbs.
    One whose result was wrong does not count."""
    best: dict[str, MeasuredRow] = {}
    for row in rows:
        if row.group == "gemm" and row.verified:
            best[row.dtype] = max(best.get(row.dtype, row), row, key=lambda row: row.flops_per_s)
    peaks_ = [
        AchievedPeak(dtype, row.flops / row.timing.low_s, shape=_shape(row), spread=row.timing.spread)
        for dtype, row in best.items()
    ]
    return sorted(peaks_, key=lambda peak: -peak.measured)


def _shape(row: MeasuredRow) -> str:
    return " × ".join(str(row.sizes[side]) for side in ("m", "k", "n") if side in row.sizes)


def _sweep(
    name: str, trial: MeasuredRow, budget_s: float, device: torch.device, say: Callable[[Note], None]
) -> Iterator[MeasuredRow]:
    """Products that fit into the time at the rate seen so far; the small one that was tried where none does."""
    began, rate, measured = time.perf_counter(), trial.flops_per_s, False
    shapes = SHAPES[kind_of(device)]
    for index, (m, k, n) in enumerate(shapes):
        left_s = budget_s - (time.perf_counter() - began)
        if FEWEST_RUNS * 2 * m * k * n / rate > left_s or not _has_room(name, (m, k, n), device):
            continue
        try:
            row = _row(name, (m, k, n), left_s / (len(shapes) - index), device)
        except _UnableError as error:
            say(measuring_notes.no_product(dtype=name, shape=f"{m} × {k} × {n}", problem=str(error)))
            continue
        if not row.verified:
            say(measuring_notes.wrong_product(dtype=name, shape=f"{m} × {k} × {n}"))
        rate, measured = max(rate, row.flops_per_s), True
        yield row
    if not measured:
        yield trial


def _row(name: str, shape: tuple[int, int, int], budget_s: float, device: torch.device) -> MeasuredRow:
    m, k, n = shape
    with numerics(name):
        try:
            pairs = [_operands(name, shape, device, seed) for seed in range(SETS)]
            products = [_product(name, a, b) for a, b in pairs]
            timing: Timing = timed(products, budget_s=budget_s, device=device)
            verified = all(_correct(name, a, b, product()) for (a, b), product in zip(pairs, products, strict=True))
        except (RuntimeError, ValueError, AttributeError, TypeError) as error:  # no such kernel, function or dtype
            raise _UnableError(" ".join(str(error).split())[:160]) from error
    moved = (m * k + k * n) * DTYPES[name].itemsize + m * n * KEPT.get(name, DTYPES[name]).itemsize
    return MeasuredRow("gemm", "product", timing, name, {"m": m, "k": k, "n": n}, 2 * m * k * n, moved, verified)


def _operands(name: str, shape: tuple[int, int, int], device: torch.device, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random matrices; normal numbers, as weights and activations are: they take a processor's usual power."""
    m, k, n = shape
    generator = torch.Generator(device).manual_seed(seed)
    if name == "int8":
        return tuple(
            torch.randint(-128, 128, size, generator=generator, device=device, dtype=torch.int8) for size in ((m, k), (k, n))
        )  # type: ignore[return-value]
    wide = torch.float64 if name == "fp64" else torch.float32
    a, b = (torch.randn(*size, generator=generator, device=device, dtype=wide).to(DTYPES[name]) for size in ((m, k), (n, k)))
    return (a, b.t()) if name == "fp8" else (a, b.t().contiguous())  # _scaled_mm wants the second by columns


def _product(name: str, a: torch.Tensor, b: torch.Tensor) -> Product:
    """Into room of its own, made before the clock runs and cleared, so that nothing right stands there by chance."""
    out = torch.zeros(a.shape[0], b.shape[1], dtype=KEPT.get(name, a.dtype), device=a.device)
    if name == "int8":
        return lambda: torch._int_mm(a, b, out=out)
    if name == "fp8":
        one = torch.ones((), device=a.device)
        return lambda: torch._scaled_mm(a, b, one, one, out_dtype=out.dtype, out=out)
    return lambda: torch.mm(a, b, out=out)


def _correct(name: str, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> bool:
    """Whether random rows and columns agree with a product in double precision.

    Of normal numbers a sum over k terms is about √k: 8 roundings of that are allowed, and one of fp32 (fp64) at each term.
    """
    generator = torch.Generator().manual_seed(2)
    m, k, n = a.shape[0], a.shape[1], b.shape[1]
    rows, columns = (torch.randint(size, (_CHECKED,), generator=generator).to(a.device) for size in (m, n))
    exact = _double(_picked(a, rows)) @ _double(_picked(b.t(), columns)).t()
    adding = {"int8": 0.0, "fp64": 2.0**-53}.get(name, 2.0**-24)
    allowed = 8 * ROUNDING[name] * k**0.5 + adding * k
    return bool((_double(out[rows][:, columns]) - exact).abs().max() <= allowed)


def _double(tensor: torch.Tensor) -> torch.Tensor:
    """In double precision; on the host, if the device has none."""
    return (tensor.cpu() if backend_of(tensor.device).why_no_float64() else tensor).double()


def _picked(matrix: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rows of a matrix; of one byte a number by its bytes, as indexing knows no 8-bit floats everywhere."""
    if matrix.dtype == torch.float8_e4m3fn:
        return matrix.view(torch.uint8)[rows].view(torch.float8_e4m3fn).float()
    return matrix[rows]


def has_tf32(device: torch.device) -> bool:
    """NVIDIA's from Ampere (compute capability 8.0) on."""
    backend = backend_of(device)
    return isinstance(backend, Cuda) and backend.vendor == "NVIDIA" and backend.has_tf32


def kind_of(device: torch.device) -> str:
    """The key of tables of sizes."""
    return "cpu" if backend_of(device).is_host else "accelerator"


def _has_room(name: str, shape: tuple[int, int, int], device: torch.device) -> bool:
    memory = None if backend_of(device).is_host else backend_of(device).free_and_total_bytes()
    if memory is None:
        return True  # of a CPU the largest is 64 MiB a matrix in fp32
    m, k, n = shape
    operand_bytes = 4 * (m * k + 2 * k * n) if name != "fp64" else 8 * (m * k + 2 * k * n)  # before they are narrowed or turned
    return SETS * (operand_bytes + 8 * m * n) < memory[0] / 2


@contextmanager
def numerics(dtype: str) -> Iterator[None]:
    """fp32 is fp32 inside, of products as of convolutions, and tf32 tf32; afterwards all is as it was before."""
    cudnn = torch.backends.cudnn
    before = torch.get_float32_matmul_precision(), cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    cudnn.allow_tf32 = dtype == "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        cudnn.allow_tf32 = before[1]
