"""Passes of exported graphs, as forecast, beside those measured on this machine: ONNX Runtime and OpenVINO.

    python -m benchmarks.serving.runtimes [--seconds S] [--only NAME] [--fit] [--write]

Random weights of real shapes, batches of 1, 4 and 8, fp32, as many threads as PyTorch has. Passes of the engine and of plain
PyTorch take turns, and the shortest of each counts. --fit prints the constants of gpuwise/serving/data/graph_engines.toml:
those under which the engine's pass over plain PyTorch's has the smallest mean error of its logarithm on the models marked
fitted, and the spread of that on those kept out. How fast the machine is at the moment drops out of that; the table has
forecasts of seconds, which rest on `gpuwise measure`, too. --write puts it into docs/serving-accuracy.md. It takes about ten
minutes of a machine that is left alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from scipy.optimize import minimize

from benchmarks.serving.page import error_row, publish, table_of
from gpuwise.api.forecasting import forecast_step
from gpuwise.api.sources import job_of, source_of
from gpuwise.cost.forecast import Interval
from gpuwise.errors import GpuwiseError
from gpuwise.runtime.serving.exported import SESSIONS, ExportedModel
from gpuwise.runtime.serving.models import ForwardModel
from gpuwise.runtime.serving.server import ServedModel
from gpuwise.serving.graph_engines import PARTS, GraphEngine, graph_engines, parts_s
from gpuwise.strategy import Strategy

BEGIN, END = "<!-- runtimes: python -m benchmarks.serving.runtimes -->", "<!-- end of runtimes -->"
BATCHES = (1, 4, 8)
ROUNDS, FEWEST = 3, 3  # passes of a round at the least
PAUSE_S = 0.1
PRECISION = "fp32"


@dataclass(frozen=True)
class Case:
    """A model. is_fitted: whether constants are fitted on it."""

    job: str
    is_fitted: bool
    sizes: tuple[tuple[str, int], ...] = ()


IMAGE, TEXT = (("image_size", 224),), (("seq_len", 64),)
CASES = (
    Case("timm:resnet18", True, IMAGE),
    Case("timm:mobilenetv3_small_100", True, IMAGE),
    Case("timm:convnext_atto", True, IMAGE),
    Case("timm:vit_tiny_patch16_224", True),
    Case("bert-base", True, TEXT),
    Case("tabular-mlp", True),
    Case("timm:resnet50", False, IMAGE),
    Case("timm:efficientnet_b0", False, IMAGE),
    Case("timm:convnext_tiny", False, IMAGE),
    Case("timm:vit_small_patch16_224", False),
    Case("timm:mixer_s32_224", False),
    Case("timm:regnety_004", False, IMAGE),
    Case("bert-base", False, (("seq_len", 256),)),
)


@dataclass(frozen=True)
class Pass:
    """A measured pass.

    Attributes:
        parts: seconds of plain PyTorch's kernels, fused (gpuwise.serving.graph_engines.parts_s).
        eager: plain PyTorch's pass as forecast.
        seconds: as measured under the engine.
        eager_s: as measured under plain PyTorch.
    """

    case: Case
    engine: str
    batch: int
    parts: dict[str, float]
    eager: Interval
    seconds: float
    eager_s: float

    @property
    def scaled_s(self) -> float:
        """Seconds under the engine, had plain PyTorch's pass taken what is forecast."""
        return self.seconds * self.eager.value / self.eager_s


def passes(case: Case, *, seconds: float) -> Iterator[Pass]:
    sizes = dict(case.sizes)
    job, source = job_of(case.job, **sizes), source_of(case.job, **sizes)
    settings = {"mode": "infer", "precision": PRECISION}
    priced = {batch: forecast_step(source, "here:1", history=False, micro_batch=batch, **settings) for batch in BATCHES}
    strategy, device = Strategy(mode="infer", precision=PRECISION), torch.device("cpu")
    plain: ServedModel = ForwardModel(job, strategy, device, batch=max(BATCHES))
    for engine in SESSIONS:
        exported: ServedModel = ExportedModel(job, strategy, batch=max(BATCHES), runtime=engine)
        for batch, each in priced.items():
            parts, eager = parts_s(each.trace, each.device.chip), each.forecast.step_time_s
            yield Pass(case, engine, batch, parts, eager, *in_turn([exported, plain], batch, seconds=seconds))


def in_turn(models: Sequence[ServedModel], batch: int, *, seconds: float) -> list[float]:
    """The shortest seconds of each model's pass. In each of ROUNDS a model has the machine alone for a share of the seconds.

    Threads of a runtime look for work for a while after its last pass, so the next model waits for PAUSE_S.
    """
    shortest = [float("inf")] * len(models)
    for _ in range(ROUNDS):
        for number, model in enumerate(models):
            times: list[float] = []
            while len(times) < FEWEST or sum(times) < seconds / ROUNDS / len(models):
                times.append(_timed(model, batch))
            shortest[number] = min(shortest[number], *times)
            time.sleep(PAUSE_S)
    return shortest


def _timed(model: ServedModel, batch: int) -> float:
    started_s = time.perf_counter()
    model.answer(range(batch), _nothing, _nothing)
    return time.perf_counter() - started_s


def _nothing(request: int) -> None:
    pass


def fitted(engine: GraphEngine, chosen: list[Pass]) -> GraphEngine:
    """The engine with the constants of the least mean error, each model counting the same."""
    parts = np.array([[each.parts[part] for part in PARTS] for each in chosen])
    measured = np.array([each.scaled_s for each in chosen])

    def with_constants(logs: np.ndarray) -> GraphEngine:
        call_s, *factors = np.exp(logs).tolist()
        return replace(engine, call_s=call_s, factors=dict(zip(PARTS, factors, strict=True)))

    def error(logs: np.ndarray) -> float:
        forecasts = np.exp(logs[0]) + parts @ np.exp(logs[1:])
        return float(np.mean(np.abs(np.log(forecasts / measured)))) + PULL * float(np.mean(logs[1:] ** 2))

    start = np.log([3e-5, *(0.7 for _ in PARTS)])
    best = min(
        (
            minimize(error, start + shift, method="Nelder-Mead", options={"maxfev": 8000, "xatol": 1e-4, "fatol": 1e-7})
            for shift in (0.0, 0.5, -0.5)
        ),
        key=lambda each: each.fun,
    )
    return with_constants(best.x)


PULL = 0.005  # towards factors of 1, for those that hardly any fitted pass shows


def rows_of(chosen: list[Pass]) -> pd.DataFrame:
    rows = []
    for each in chosen:
        engine = graph_engines()[each.engine]
        value = engine.pass_s(each.parts)
        interval = engine.interval(value, each.eager)
        rows.append(
            {
                "engine": each.engine,
                "split": "fitted" if each.case.is_fitted else "kept out",
                "model": " ".join([each.case.job, *(str(size) for _, size in each.case.sizes)]),
                "ratio": value / each.seconds,
                "inside": interval.low <= each.seconds <= interval.high,
            }
        )
    return pd.DataFrame(rows)


def over_pytorch(chosen: list[Pass]) -> pd.DataFrame:
    """Passes over those of plain PyTorch, as forecast over as measured: what the factors are off by."""
    rows = []
    for each in chosen:
        engine = graph_engines()[each.engine]
        ratio = engine.pass_s(each.parts) / each.scaled_s
        rows.append(error_row("over plain PyTorch", ratio, engine.spread, fitted=each.case.is_fitted, engine=each.engine))
    return pd.DataFrame(rows)


def print_fit(name: str, chosen: list[Pass]) -> None:
    of_engine = [each for each in chosen if each.engine == name]
    best = fitted(graph_engines()[name], [each for each in of_engine if each.case.is_fitted])
    print(f"[{name}]\ncall_us = {1e6 * best.call_s:.1f}")
    for part, factor in best.factors.items():
        print(f"{part} = {factor:.2f}")
    ratios = [each.scaled_s / best.pass_s(each.parts) for each in of_engine if not each.case.is_fitted]
    if ratios:
        low, high = np.quantile(ratios, [0.05, 0.95])
        print(f"spread = [{min(low, 1.0):.2f}, {max(high, 1.0):.2f}]")
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    chosen: list[Pass] = []
    for case in CASES:
        if options.only not in case.job:
            continue
        try:
            for each in passes(case, seconds=options.seconds):
                chosen.append(each)
                value = graph_engines()[each.engine].pass_s(each.parts)
                print(
                    f"{case.job} {each.engine} {each.batch}: {1e3 * each.seconds:.2f} ms, forecast {1e3 * value:.2f}; "
                    f"plain PyTorch {1e3 * each.eager_s:.2f} ms, forecast {1e3 * each.eager.value:.2f}",
                    file=sys.stderr,
                    flush=True,
                )
        except GpuwiseError as error:
            print(f"{case.job}: {error}", file=sys.stderr)
    if not chosen:
        return
    for name in SESSIONS if options.fit else ():
        print_fit(name, chosen)
    rows = rows_of(chosen)
    tables = [
        table_of(over_pytorch(chosen), ["engine", "split", "figure"]),
        table_of(rows, ["engine", "split"]),
        table_of(rows, ["engine", "split", "model"]),
    ]
    text = "\n\n".join(tables)
    publish(text, BEGIN, END, write=options.write)


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
