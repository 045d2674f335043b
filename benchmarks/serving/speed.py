"""How fast a load is simulated, and how fast the rate that an instance serves is searched.

    python -m benchmarks.serving.speed [--rounds N]

One hour of 10 requests a second (Poisson, log-normal lengths of 500 and 250 tokens on average) on one H100 with Llama-3 8B, and
the highest rate with 99 % of first tokens within a second. Processor seconds: median and range of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from gpuwise.api.devices import device_of
from gpuwise.cost.memory.device import outside_bytes
from gpuwise.cost.parameters import parameters
from gpuwise.hardware import load_catalog
from gpuwise.job.presets import preset_job
from gpuwise.serving.engines import engine_of
from gpuwise.serving.instance import Instance, LoadShape
from gpuwise.serving.lengths import Lengths
from gpuwise.serving.saturation import Limits
from gpuwise.serving.step_time import EngineStep
from gpuwise.tracing.generation import record_generation

HOUR_S, RATE = 3600, 10.0


def seconds(run: Callable[[], object], rounds: int) -> list[float]:
    """Processor seconds of each of some runs, after one that is not counted."""
    run()
    taken = []
    for _ in range(rounds):
        start = time.process_time()
        run()
        taken.append(time.process_time() - start)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    device, engine = device_of("h100-sxm", load_catalog()), engine_of("vllm")
    cluster, generation = device.cluster, record_generation(preset_job("llama3-8b"))
    assert cluster.capacity_bytes is not None
    policy = engine.policy(
        generation,
        capacity_bytes=cluster.capacity_bytes,
        outside_bytes=outside_bytes(cluster, parameters()),
        longest=8192,
    )
    instance = Instance(EngineStep(generation, cluster, costs=engine.costs), policy, engine.spread)
    loads = LoadShape(Lengths(500, 250, input_variation=1.0, output_variation=1.0))
    hour = loads.at(RATE, count=int(HOUR_S * RATE))
    for name, run in (
        ("an hour at 10 requests/s", lambda: instance.served(hour)),
        ("the highest rate within limits", lambda: instance.saturation_rate(loads, Limits(ttft_s=1.0))),
    ):
        taken = seconds(run, options.rounds)
        middle = statistics.median(taken)
        real = f", {HOUR_S / middle:,.0f} x real time" if "hour" in name else ""
        print(f"{name}: {middle:.2f} s ({min(taken):.2f} to {max(taken):.2f}){real}")


if __name__ == "__main__":
    main()
