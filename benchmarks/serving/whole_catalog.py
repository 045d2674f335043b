"""How long serve-plan takes over the whole catalog, and how many kinds of instance it has to simulate.

    python -m benchmarks.serving.whole_catalog [--rounds N] [--job JOB] [--rate RATE] [--slo LIMITS]

How a preset generates is read from its recording: processor seconds are those of bounds, tables and queues, median and range of
the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

from gpuwise.api import serving_catalog
from gpuwise.api.serving import serve_plan
from gpuwise.serving.choosing import Choice, Contender, choose
from gpuwise.serving.preset_generations import load_preset_generation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--job", default="llama3-8b")
    parser.add_argument("--rate", default="5/s")
    parser.add_argument("--slo", default="ttft=1s,tpot=50ms")
    options = parser.parse_args()
    choices: list[Choice] = []

    def counted(contenders: Sequence[Contender], *, rate_per_s: float, up_to: float, count: int) -> Choice:
        choices.append(choose(contenders, rate_per_s=rate_per_s, up_to=up_to, count=count))
        return choices[-1]

    serving_catalog.choose = counted
    taken = []
    for _ in range(options.rounds + 1):
        load_preset_generation.cache_clear()  # what its tables have kept goes with it
        start = time.process_time()
        result = serve_plan(options.job, rate=options.rate, slo=options.slo, input=800, output=300)
        taken.append(time.process_time() - start)
    last, seconds = choices[-1], taken[1:]
    simulated = sum(1 for each in (*last.exact, *last.fails, *last.dearer) if each.is_simulated)
    considered = len(last.exact) + len(last.fails) + len(last.dearer)
    print(f"{options.job} at {options.rate}, {options.slo}: cheapest {result.rows[0].device}")
    print(f"{considered} kinds of instance, {simulated} simulated, {len(last.exact)} to the end")
    print(f"{statistics.median(seconds):.1f} s of one core ({min(seconds):.1f} to {max(seconds):.1f})")


if __name__ == "__main__":
    main()
