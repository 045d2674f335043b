"""serve_check of a language model, an encoder and a vision model at three shares of what each serves at most.

    python -m benchmarks.serving.check [--seconds S] [--shares 0.3,0.6,0.9] [--only NAME] [--bare]
    python -m benchmarks.serving.check --queue

Prints a Markdown table: p50 and p99 of each latency as measured, and their errors (forecast / measured - 1) without and with
--profile; both are of the same load, whose passes were timed just before. The last lines are of the most that is served.
Shares are of the measured capacity, so that the load does not depend on the forecast. Meant for a machine that is left alone,
after `gpuwise measure`; it takes about ten minutes. --bare replaces the timed forward passes by their means within the load:
the queue's error is left. --queue serves a model that keeps a processor busy for an exact time, in a minute: the error of
waiting, server and clients alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import inf, isinf

import numpy as np
import torch

from benchmarks.serving.busy_model import queue_table
from gpuwise.api.serving_load import CheckPlan, check_plan
from gpuwise.api.serving_run import serve_here
from gpuwise.cost.forecast import Interval
from gpuwise.job import Job
from gpuwise.job.models.generation import generate
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.serving.check import CheckedFigure, ServeCheck
from gpuwise.serving.pass_times import ForwardTimes
from gpuwise.serving_settings import CheckSettings

NAMES = {"ttft_s": "first token", "tpot_s": "a token", "latency_s": "latency"}
FEWEST, MOST = 50, 2000
LOAD_S = 20.0
HEADERS = ("model", "share", "requests", "figure", "p50", "forecast", "timed", "inside", "p99", "forecast", "timed", "inside")


def llama(name: str = "llama-27m", *, layers: int = 4, hidden: int = 1408) -> Job:
    """A small Llama; by default of 27 million parameters."""
    config = LlamaConfig(vocabulary=8192, width=512, layers=layers, heads=8, kv_heads=2, hidden=hidden)
    return Job(
        lambda: Llama(config),
        lambda n: {"tokens": torch.zeros(n, 8, dtype=torch.long)},
        lambda model, batch: model(batch["tokens"]).mean(),
        generate=generate,
        name=name,
        context_length=2048,
    )


@dataclass(frozen=True)
class Case:
    """A model, and how it is served."""

    name: str
    job: Job | str
    settings: CheckSettings = field(default_factory=lambda: CheckSettings())


CASES = (
    Case("llama-27m", llama(), {"input": 64, "output": 32}),
    Case("llama-27m, 4 together", llama(), {"input": 64, "output": 32, "batch": 4, "spread": 0.0}),
    Case("bert-base, 64 tokens", "bert-base", {"seq_len": 64}),
    Case("resnet18, 224 pixels", "timm:resnet18", {"image_size": 224}),
)


def checks(case: Case, shares: list[float], *, seconds: float, bare: bool) -> Iterator[tuple[float, ServeCheck]]:
    """The results at each share of the measured capacity; the first one is of all requests at once, at infinity."""
    all_at_once: CheckSettings = {**case.settings, "rate": "inf", "requests": FEWEST, "profile": True}
    flood = serve_here(check_plan(case.job, **all_at_once), progress=_silent)
    capacity = flood.capacity.measured
    assert capacity
    yield inf, flood
    for share in shares:
        rate = share * capacity
        count = min(max(round(seconds * rate), FEWEST), MOST)
        load: CheckSettings = {**case.settings, "rate": f"{rate:.6f}/s", "requests": count, "profile": not bare}
        plan = check_plan(case.job, **load)
        result = serve_here(plan, progress=_silent)
        if bare and isinstance(plan.forecast.times, ForwardTimes):
            result = serve_here(_with_measured_passes(plan, result), progress=_silent)
        yield share, result


def _with_measured_passes(plan: CheckPlan, result: ServeCheck) -> CheckPlan:
    """The same load, whose passes are forecast as they were measured."""
    measured = {group.requests: float(group.seconds.measured or np.nan) for group in result.groups}
    times = ForwardTimes({size: Interval(seconds, 0.9 * seconds, 1.1 * seconds) for size, seconds in measured.items()})
    return replace(plan, forecast=replace(plan.forecast, times=times), server=replace(plan.server, times=times))


def rows(case: Case, share: float, result: ServeCheck) -> Iterator[list[str]]:
    if isinf(share):
        untimed = result.timing.capacity if result.timing else None
        cells = _cells(result.capacity, untimed, lambda rate: f"{rate:,.2f}/s")
        yield [case.name, "all at once", f"{result.counts.sent:,}", "most served", *cells, "", "", "", ""]
        return
    for name, words in (NAMES if result.generates else {"latency_s": "latency"}).items():
        both = [
            _cells(figure, _untimed(result, name, level), _ms) for level, figure in result.latency[name].items() if level != 90
        ]
        yield [case.name, f"{share:.0%}", f"{result.counts.sent:,}", words, *both[0], *both[1]]


def _untimed(result: ServeCheck, name: str, level: int) -> CheckedFigure | None:
    return None if result.timing is None else result.timing.latency[name][level]


def _cells(figure: CheckedFigure, untimed: CheckedFigure | None, show: Callable[[float], str]) -> list[str]:
    measured = "–" if figure.measured is None else show(figure.measured)
    return [measured, _error(untimed), _error(figure), "yes" if figure.inside else "no"]


def _error(figure: CheckedFigure | None) -> str:
    return "–" if figure is None or figure.error is None else f"{figure.error:+.0%}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms"


def _silent(words: str) -> None:
    pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=LOAD_S)
    parser.add_argument("--shares", default="0.3,0.6,0.9")
    parser.add_argument("--only", default="")
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--queue", action="store_true")
    options = parser.parse_args()
    if options.queue:
        print(queue_table(), flush=True)
        return
    print(f"| {' | '.join(HEADERS)} |\n| --- | ---: | ---: | --- {'| ---: ' * 8}|")
    for case in CASES:
        if options.only not in case.name:
            continue
        shares = [float(share) for share in options.shares.split(",")]
        for share, result in checks(case, shares, seconds=options.seconds, bare=options.bare):
            for row in rows(case, share, result):
                print(f"| {' | '.join(row)} |", flush=True)
            for remark in result.remarks:
                print(f"{case.name} at {share:.0%} of the most: {remark}", file=sys.stderr)


if __name__ == "__main__":
    main()
