"""How long a change of budget, deadline or objective takes once a job is searched: `choose` alone, as a page calls it.

    python -m benchmarks.choose_speed [--times 20] [--runs 9]

Aim: 60 ms of one core. The offers of the catalog are taken --times over, at prices a little apart, so that there are thousands
of candidates. Beside it the same ranking from nothing, which is what a first call does.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from gpuwise.api.sources import source_of
from gpuwise.hardware.catalog import Catalog
from gpuwise.plan.buying.candidates import Candidate
from gpuwise.plan.choose import choose
from gpuwise.plan.plan_result import PlanResult
from gpuwise.plan.request import Request
from gpuwise.plan.search import search
from gpuwise.plan.searched import Searched
from gpuwise.plan_settings import OBJECTIVES

REQUEST = Request(tokens=20 * 10**9, budget_usd=20_000.0, deadline_s=30 * 86400.0)


def searched_of(job: str) -> Searched:
    """The search over the catalog, whose strategies are the same at any price."""
    catalog, source = Catalog(user_files=()), source_of(job)
    source.search_recorded()
    return search(source.traces(), REQUEST, catalog.offers, catalog)


def enlarged(searched: Searched, times: int) -> Searched:
    """The candidates so many times over, each at another price."""
    items = [item for item in searched.considered if isinstance(item, Candidate)]
    more = [
        replace(
            item,
            offer=replace(
                item.offer, instance=f"{item.offer.instance} {copy}", usd_per_hour=item.offer.usd_per_hour * (1 + copy / 100)
            ),
        )
        for copy in range(times)
        for item in items
    ]
    return replace(searched, considered=more)


def median_ms(run: Callable[[int], PlanResult], runs: int) -> float:
    """The median CPU time of a call, in milliseconds."""
    seconds = []
    for index in range(runs):
        begin = time.process_time()
        run(index)
        seconds.append(time.process_time() - begin)
    return 1000 * statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", default="llama3-8b")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--runs", type=int, default=9)
    options = parser.parse_args()
    searched = enlarged(searched_of(options.job), options.times)
    result = choose(searched, REQUEST)
    priced = len(result.front.points) + len(result.front.others) if result.front is not None else 0

    def moved(index: int) -> PlanResult:
        limits = {"budget_usd": 15_000.0 + 1000 * index, "deadline_s": (20 + index) * 86400.0}
        return choose(searched, replace(REQUEST, **limits, objective=OBJECTIVES[index % len(OBJECTIVES)]))

    print(f"{options.job}: {result.considered:,} candidates, {priced:,} of them plans that could be used")
    print(f"a limit or the objective moves: {median_ms(moved, options.runs):.0f} ms of CPU, median of {options.runs}")
    fresh = [replace(searched, remembered={}) for _ in range(options.runs)]
    print(f"from nothing:                   {median_ms(lambda index: choose(fresh[index], REQUEST), options.runs):.0f} ms")


if __name__ == "__main__":
    main()
