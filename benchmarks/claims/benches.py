"""The benchmarks behind the measured figures: products, attention and small training steps on this machine's CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import gpuwise
from benchmarks.claims.jobs import chain, small_gpt
from benchmarks.claims.measured import RESULTS, Machine, Measured, save
from benchmarks.memory_on_cpu import measured_bytes
from gpuwise.errors import GpuwiseError
from gpuwise.hardware.detect import detect_cpu
from gpuwise.job import Job, checked_batch, resolve
from gpuwise.measure.timing import timed
from gpuwise.runtime.build.program import build
from gpuwise.strategy import Strategy

BUDGET_S = 3.0  # of one benchmark; slow ones take three rounds all the same
SETS = 4  # of inputs, taken in turn
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Bench(NamedTuple):
    """what: in words. run: measures it. forecast: what gpuwise says of it here."""

    what: str
    run: Callable[[], Measured]
    forecast: Callable[[], float] | None = None


def _seconds(runs: list[Callable[[], object]], **of_a_run: Any) -> Measured:
    t = timed(runs, budget_s=BUDGET_S)
    return Measured("", "s", t.median_s, t.low_s, t.high_s, t.least_s, t.rounds, date.today().isoformat(), **of_a_run)


def _bytes(count: int, **of_a_run: Any) -> Measured:
    return Measured("", "bytes", count, count, count, count, 1, date.today().isoformat(), **of_a_run)


def _kernel_s(kind: str, **arguments: Any) -> float:
    return gpuwise.kernel(kind, on="here", **arguments).time_s.value


def _gemm(m: int, n: int, k: int, dtype: str = "fp32") -> Bench:
    def run() -> Measured:
        pairs = [(torch.randn(m, k).to(DTYPES[dtype]), torch.randn(k, n).to(DTYPES[dtype])) for _ in range(SETS)]
        a, b = pairs[0]
        torch.testing.assert_close((a @ b).double(), a.double() @ b.double(), rtol=0.02, atol=0.02 * k**0.5)
        return _seconds([partial(torch.matmul, a, b) for a, b in pairs], flops=2.0 * m * n * k)

    what = f"{m}×{k} times {f'{k}×{n}' if n > 1 else 'a vector'}, {dtype}"
    return Bench(what, run, partial(_kernel_s, "gemm", dtype=dtype, m=m, n=n, k=k))


def _attention(queries: int, name: str) -> Bench:
    backend = {"flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH}[name]

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v)

    def run() -> Measured:
        sets = [tuple(torch.randn(1, 12, queries, 64) for _ in range(3)) for _ in range(SETS)]
        with sdpa_kernel(SDPBackend.MATH):
            torch.testing.assert_close(attend(*sets[0]), F.scaled_dot_product_attention(*sets[0]), rtol=1e-3, atol=1e-4)
        return _seconds([partial(attend, *tensors) for tensors in sets], flops=4.0 * 12 * queries**2 * 64)

    forecast = partial(_kernel_s, "attention", dtype="fp32", batch=1, heads=12, queries=queries, head_size=64)
    what = f"attention of 12 heads of 64, {queries} tokens, {name}"
    return Bench(what, run, forecast if name == "flash" else None)


def _forecast(make: Callable[[], Job], n: int, precision: str) -> gpuwise.Forecast:
    return gpuwise.forecast(make(), on="here", micro_batch=n, precision=precision)


def _step(what: str, make: Callable[[], Job], n: int) -> Bench:
    def run() -> Measured:
        job = make()
        program, batch = build(job, Strategy(micro_batch=n), "cpu"), checked_batch(job, n)
        items = n * (job.tokens_per_sample or 1) if job.sample_unit == "token" else n
        return _seconds([partial(program.step, [batch])], items=items, counted=f"{job.sample_unit}s")

    return Bench(f"{what}, {n} a step, fp32", run, lambda: _forecast(make, n, "fp32").step_time_s.value)


def _peak(what: str, make: Callable[[], Job], n: int, precision: str) -> Bench:
    return Bench(
        f"{what}, {n} a step, {precision}: peak",
        lambda: _bytes(measured_bytes(make(), Strategy(micro_batch=n, precision=precision))),
        lambda: _forecast(make, n, precision).memory.peak_allocated_bytes,
    )


def _state(optimizer: str) -> Bench:
    def run() -> Measured:
        job = small_gpt()
        program = build(job, Strategy(micro_batch=1, optimizer=optimizer), "cpu")
        program.step([checked_batch(job, 1)])
        assert program.optimizer is not None
        states = [t for state in program.optimizer.state.values() for t in state.values() if torch.is_tensor(t) and t.dim()]
        parameters = sum(p.numel() for p in program.model.parameters())
        return _bytes(sum(t.nbytes for t in states), items=parameters, counted="parameters")

    return Bench(f"state of {optimizer} after a step of a small GPT, fp32", run)


def benches() -> dict[str, Bench]:
    """All benchmarks by name."""
    resnet, mlp = partial(resolve, "resnet50"), partial(resolve, "tabular-mlp")
    bert = partial(resolve, "bert-base", seq_len=128)
    by_name = {
        "gemm_1000": _gemm(1000, 1000, 1000),
        "gemm_1024": _gemm(1024, 1024, 1024),
        "gemm_1024_bf16": _gemm(1024, 1024, 1024, "bf16"),
        "gemm_256x1024x2048": _gemm(256, 2048, 1024),
        "matvec_4096": _gemm(4096, 1, 4096),
        "matmul_4096_512": _gemm(4096, 512, 4096),
        **{f"attention_{kind}_{n}": _attention(n, kind) for n in (512, 1024, 2048) for kind in ("flash", "math")},
        **{f"mlp_step_{n}": _step("MLP on 20 columns", mlp, n) for n in (1, 32, 512, 10_000)},
        **{f"resnet50_step_{n}": _step("ResNet-50, images of 224", resnet, n) for n in (1, 4, 8)},
        **{f"bert_step_{n}": _step("BERT base, sequences of 128", bert, n) for n in (1, 4)},
        **{f"state_{optimizer}_bytes": _state(optimizer) for optimizer in ("sgd", "momentum", "adamw")},
    }
    for key, segments, words in (
        ("none", 0, "no checkpoints"),
        ("root", 8, "8 segments"),
        ("each", 64, "a checkpoint at each"),
    ):
        layers = chain(64, segments)
        by_name[f"checkpoint_{key}_s"] = _step(f"64 layers, {words}", layers, 4096)
        by_name[f"checkpoint_{key}_bytes"] = _peak(f"64 layers, {words}", layers, 4096, "fp32")
    for short, precision in (("fp32", "fp32"), ("amp", "amp-bf16")):
        by_name[f"autocast_gpt_{short}_bytes"] = _peak("GPT of 4 layers, sequences of 256", small_gpt, 8, precision)
        by_name[f"autocast_resnet_{short}_bytes"] = _peak("ResNet-50, images of 224", resnet, 4, precision)
    return by_name


def measure(only: str = "", *, path: Path = RESULTS) -> Mapping[str, Measured]:
    """Runs the benchmarks whose name begins with `only`, prints each, and keeps them in a file.

    Raises InputError where those kept are of another machine.
    """
    torch.manual_seed(0)
    cpu = detect_cpu()
    rows: dict[str, Measured] = {}
    for name, bench in benches().items():
        if not name.startswith(only):
            continue
        forecast = None
        with suppress(GpuwiseError):
            forecast = float(bench.forecast()) if bench.forecast else None
        rows[name] = row = replace(bench.run(), what=bench.what, forecast=forecast)
        print(
            f"{name:28} {row.value:.6g} {row.unit} ({row.low:.6g} to {row.high:.6g}, {row.rounds} rounds); "
            f"forecast {'–' if forecast is None else f'{forecast:.6g}'}",
            flush=True,
        )
    save(Machine(cpu.name, cpu.cores, torch.get_num_threads(), torch.__version__), rows, whole=not only, path=path)
    return rows
