"""How fast the caching allocator is replayed: events a second, on shipped presets and on a drawn history of 20,000 events.

    python -m benchmarks.allocator_speed [--runs 9]

Contestants take turns; medians and the range are printed.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

from gpuwise.cost.memory.allocator import replay
from gpuwise.cost.memory.events import step_events
from gpuwise.trace.presets import load_preset

BLAS_WORKSPACE_BYTES = 8_519_680
PRESETS = [("resnet50", "amp-bf16", 64), ("bert-base", "amp-bf16", 32), ("gpt2", "amp-bf16", 8), ("llama3-8b", "bf16", 1)]

History = tuple[list[int], list[int]]


def drawn(events: int = 20_000) -> History:
    """Tensors of 512 bytes to 100 MiB that come and go in no order: some hundred free blocks at any time."""
    rng = random.Random(0)
    mib = 2**20
    usual = [512, 4096, mib // 2, mib, 3 * mib, 9 * mib, 16 * mib, 33 * mib, 64 * mib, 100 * mib]
    sizes: list[int] = []
    order: list[int] = []
    alive: list[int] = []
    while len(order) < events:
        if alive and rng.random() < 0.5:
            order.append(~alive.pop(rng.randrange(len(alive))))
        else:
            alive.append(len(sizes))
            order.append(len(sizes))
            sizes.append(rng.choice(usual) + 700 * rng.randrange(3))
    return sizes, order


def of_preset(name: str, precision: str, micro_batch: int) -> History:
    """Two steps over four micro-batches, of which two run."""
    family = load_preset(name, precision=precision)
    assert family is not None
    trace = family.at(micro_batch=micro_batch, accumulation=4)
    events = step_events(trace, blas_workspace_bytes=BLAS_WORKSPACE_BYTES)
    return events.size_bytes.tolist(), events.order.tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9)
    runs = parser.parse_args().runs
    histories = {"drawn": drawn()} | {f"{name}, {precision}": of_preset(name, precision, n) for name, precision, n in PRESETS}
    contestants = [(name, history, mode) for name, history in histories.items() for mode in (False, True)]
    seconds: dict[int, list[float]] = {index: [] for index in range(len(contestants))}
    for turn in range(runs + 1):  # the first round warms up and is not counted
        for index, (_, (sizes, order), expandable) in enumerate(contestants):
            start = time.perf_counter()
            replay(sizes, order, expandable=expandable)
            if turn:
                seconds[index].append(time.perf_counter() - start)
    for index, (name, (_, order), expandable) in enumerate(contestants):
        median, low, high = statistics.median(seconds[index]), min(seconds[index]), max(seconds[index])
        print(
            f"{1e3 * median:7.1f} ms  ({1e3 * low:.1f} to {1e3 * high:.1f})  {len(order):6,} events  "
            f"{len(order) / median:10,.0f} events/s  {'expandable' if expandable else 'classic':10}  {name}"
        )


if __name__ == "__main__":
    main()
