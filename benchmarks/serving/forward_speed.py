"""How long serve-plan takes over the whole catalog for models of one forward pass, and how many chips it simulates.

    python -m benchmarks.serving.forward_speed [--rounds N]

Passes of the presets are recorded before, and those of this machine in the first round, which does not count. Processor
seconds: prices of passes, bounds and queues, median and range of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time

import gpuwise
from gpuwise.api import forward_catalog
from gpuwise.serving.forward_instance import best_batches

QUESTIONS = (
    ("bert-base", {"rate": "50/s", "slo": "latency=50ms", "seq_len": 128}),
    ("bert-base", {"rate": "5000/s", "slo": "latency=50ms", "seq_len": 128}),
    ("resnet50", {"rate": "200/s", "slo": "latency=100ms"}),
    ("dlrm", {"rate": "2000/s", "slo": "latency=20ms"}),
    ("tabular-mlp", {"rate": "100/s"}),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    simulated: list[object] = []

    def counted(*arguments: object) -> object:
        simulated.append(arguments)
        return best_batches(*arguments)

    forward_catalog.best_batches = counted
    for job, settings in QUESTIONS:
        taken = []
        for _ in range(options.rounds + 1):
            simulated.clear()
            start = time.process_time()
            plan = gpuwise.serve_plan(job, **settings)
            taken.append(time.process_time() - start)
        considered = next(note for note in plan.assumption_notes if note.kind == "forward-catalog").figures["considered"]
        seconds = taken[1:]
        print(
            f"{job}, {', '.join(map(str, settings.values()))}: cheapest {plan.rows[0].device}; {considered} kinds of machine, "
            f"{len(simulated)} chips simulated; {statistics.median(seconds):.1f} s of one core "
            f"({min(seconds):.1f} to {max(seconds):.1f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
