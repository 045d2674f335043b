"""serve_check of a small Llama on llama.cpp, by format of weights and slots: forecast beside measured.

    python -m benchmarks.serving.llama_cpp [--seconds S] [--share 0.6] [--only TEXT]

Prints a Markdown table: the most that is served, then each latency's p50 and p99 at a share of the measured capacity, with the
error (forecast / measured - 1) and whether the interval holds what was measured. Meant for a machine that is left alone, after
`gpuwise measure`; it takes some five minutes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import product

from benchmarks.serving.check import FEWEST, MOST, NAMES, llama
from gpuwise.api.serving_check import serve_check
from gpuwise.serving.check import CheckedFigure, ServeCheck
from gpuwise.serving_settings import CheckSettings

FORMATS, SLOTS = ("gguf-f16", "gguf-q8_0", "gguf-q4_0", "gguf-q4_k_m"), (1, 4)
HEADERS = ("weights", "slots", "requests", "figure", "forecast", "interval", "measured", "error", "inside")


def checks(weights: str, slots: int, *, share: float, seconds: float) -> Iterator[ServeCheck]:
    """All requests at once, then a share of the rate that was measured of them."""
    settings: CheckSettings = {"engine": "llama.cpp", "weights": weights, "batch": slots, "input": 64, "output": 32}
    job = llama("llama-38m", layers=8, hidden=1536)
    flood = serve_check(job, **settings, rate="inf", requests=FEWEST)
    yield flood
    assert flood.capacity.measured
    rate = share * flood.capacity.measured
    yield serve_check(job, **settings, rate=f"{rate:.6f}/s", requests=min(max(round(seconds * rate), FEWEST), MOST))


def rows(weights: str, slots: int, result: ServeCheck) -> Iterator[list[str]]:
    first = [weights, f"{slots}", f"{result.counts.sent:,}"]
    if result.capacity.measured is not None:
        yield [*first, "most served", *_cells(result.capacity, unit="/s", scale=1.0)]
        return
    for name, words in NAMES.items():
        for level in (50, 99):
            yield [*first, f"{words} p{level}", *_cells(result.latency[name][level], unit=" ms", scale=1e3)]


def _cells(figure: CheckedFigure, *, unit: str, scale: float) -> list[str]:
    forecast, low, high = (
        f"{scale * value:,.2f}" for value in (figure.forecast.value, figure.forecast.low, figure.forecast.high)
    )
    measured = "–" if figure.measured is None else f"{scale * figure.measured:,.2f}{unit}"
    error = "–" if figure.error is None else f"{figure.error:+.0%}"
    return [f"{forecast}{unit}", f"{low} to {high}", measured, error, "yes" if figure.inside else "no"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--share", type=float, default=0.6)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    print(f"| {' | '.join(HEADERS)} |\n| --- {'| ---: ' * 2}| ---: | --- {'| ---: ' * 5}|")
    for weights, slots in product(FORMATS, SLOTS):
        if options.only not in weights:
            continue
        for result in checks(weights, slots, share=options.share, seconds=options.seconds):
            for row in rows(weights, slots, result):
                print(f"| {' | '.join(row)} |", flush=True)
            for remark in result.remarks:
                print(f"{weights}, {slots} slots: {remark}", file=sys.stderr)


if __name__ == "__main__":
    main()
