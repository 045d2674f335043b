"""How long pricing a recorded step takes: on one chip, and on every chip of the catalog.

    python -m benchmarks.pricing_speed [--operations 20000] [--runs 5]

The step is made of the operations of shipped presets, each once more at slightly other sizes until there are as many distinct
ones as asked for; every one runs once. Aims: 20 ms on a chip, 1 second on all chips. Prints medians with their range: the first
time a trace is priced its operations are sorted into classes, which later chips share. Memory is counted; running
the allocator over the step is printed apart, and so is a preset as it is recorded.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gpuwise.cost.price import price
from gpuwise.errors import UnsupportedError
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.types import Chip
from gpuwise.trace import Trace
from gpuwise.trace.parallel.communication import Communication
from gpuwise.trace.presets import load_preset
from gpuwise.trace.tables import COLUMNS, Operations, OperationSequence, Storages

PRESETS = ("resnet50", "gpt2", "vit-b16", "bert-base")
SIZES = [COLUMNS.index(name) for name in ("flops", "bytes_read", "bytes_written", "m")]


def large_trace(operations: int) -> Trace:
    """A training step of that many distinct operations, in fp32 so that every chip computes it, each run once."""
    results = [load_preset(name, precision="fp32") for name in PRESETS]
    traces = [family.at(micro_batch=4) for family in results if family is not None]
    names, dtypes, kinds, values, phases = [], [], [], [], []
    count, round_ = 0, 0
    while count < operations:
        for trace in traces:
            ops = trace.operations
            factor = np.ones(len(COLUMNS))
            factor[SIZES] = 1 + round_ / 100
            phase = np.zeros(len(ops), dtype=np.int64)
            phase[trace.sequence.operation] = trace.sequence.phase
            names += ops.name
            dtypes += ops.dtype
            kinds.append(ops.kind)
            values.append((ops.values * factor).astype(np.int64))
            phases.append(phase)
            count += len(ops)
        round_ += 1
    kept = slice(0, operations)
    whole = Operations(tuple(names[kept]), np.concatenate(kinds)[kept], tuple(dtypes[kept]), np.concatenate(values)[kept])
    order = np.arange(operations)
    phase = np.concatenate(phases)[kept]
    sequence = OperationSequence(order, order % 500, phase, np.where(phase == 3, 2, 0))
    sizes = np.full(operations, 4_000_000)
    storages = Storages(sizes, np.full(operations, 3), order % 500, order, np.minimum(order + 50, operations))
    return Trace(traces[0].header, whole, sequence, storages, tuple(f"layers.{i}.mlp" for i in range(500))).check()


def priced(trace: Trace, chip: Chip, *, replay: bool = False) -> None:
    price(trace, Communication(), Cluster(chip), strategy=trace.header.strategy, replay=replay)


def able(trace: Trace, catalog: Catalog) -> list[Chip]:
    """Chips that the step runs on."""
    results = []
    for chip in catalog.chips.values():
        try:
            priced(trace, chip)
        except UnsupportedError:
            continue
        results.append(chip)
    return results


def line(name: str, work: Callable[[], object], runs: int) -> str:
    """Processor time is what counts on a busy machine."""
    elapsed, busy = [], []
    for _ in range(runs):
        start, processor = time.perf_counter(), time.process_time()
        work()
        elapsed.append(1e3 * (time.perf_counter() - start))
        busy.append(1e3 * (time.process_time() - processor))
    return (
        f"{name:52} {statistics.median(elapsed):8.1f} ms ({min(elapsed):.1f} to {max(elapsed):.1f}), "
        f"processor {statistics.median(busy):.1f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    catalog, trace = Catalog(), large_trace(options.operations)
    preset = load_preset("gpt2", precision="fp32")
    assert preset is not None
    gpt2, chip = preset.at(micro_batch=4), catalog.chip("h100-80gb-sxm")
    chips = able(gpt2, catalog)
    print(f"{len(trace.operations):,} distinct operations; {len(chips)} of {len(catalog.chips)} chips run the step")
    works: dict[str, Callable[[], object]] = {
        "one chip, a trace priced before": lambda: priced(trace, chip),
        "one chip, a new trace": lambda: priced(replace(trace), chip),
        "one chip, a new trace, with the allocator": lambda: priced(replace(trace), chip, replay=True),
        "all chips": lambda: [priced(trace, one) for one in chips],
        f"all chips, gpt2 ({len(gpt2.operations)} distinct operations)": lambda: [priced(gpt2, one) for one in chips],
    }
    for name, work in works.items():
        print(line(name, work, options.runs), flush=True)


if __name__ == "__main__":
    main()
