"""What collectives of gloo reach between processes of this machine, which is what ranks on a CPU exchange with:

    python -m benchmarks.gloo_here [--processes 2,4] [--seconds N]

It times the collectives of `gpuwise measure` between so many processes, and prints the bus bandwidth of the largest calls, the
time of the fastest all-reduce, and the smallest 10th and largest 90th percentile of all calls, relative to the time that
gpuwise.api.shared_cpu forecasts from its rough figures. These are the rough figures themselves where `gpuwise measure` has not
run. Half a minute on two cores.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace

import torch

from gpuwise.api.shared_cpu import gloo_link
from gpuwise.hardware.detect import detect_cpu
from gpuwise.hardware.types import Chip
from gpuwise.measure.chip_figures import bus_bytes
from gpuwise.measure.probes.collectives import rows
from gpuwise.results.measurement import MeasuredRow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", default="2,4", help="how many, one after the other")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each number of processes")
    options = parser.parse_args()
    cpu = detect_cpu()
    chip = Chip("here-cpu", "", cpu.name, "cpu", sm_count=cpu.cores)
    print(f"{cpu.name}, {cpu.cores} cores, load {os.getloadavg()[0]:.1f}, PyTorch {torch.__version__}")
    ratios: list[float] = []
    for processes in map(int, options.processes.split(",")):
        calls = list(rows(options.seconds, torch.device("cpu"), lambda note: print(note.text), processes=processes))
        print(f"\n{processes} processes: {_summary(calls)}")
        for call in calls:
            of_call = [seconds / expected_s(chip, call) for seconds in (call.timing.low_s, call.timing.high_s)]
            print(f"  {_line(call)}  {of_call[0]:.2f} to {of_call[1]:.2f} times the rough forecast")
            ratios += of_call
    if ratios:
        print(f"\nall calls: {min(ratios):.2f} to {max(ratios):.2f} times the rough forecast")


def expected_s(chip: Chip, call: MeasuredRow) -> float:
    """Seconds of a call as forecasts price it without a measurement."""
    link = gloo_link(replace(chip, achieved=None), call.sizes["processes"])
    return bus_bytes(call) / link.collective_busbw_bytes_per_s[call.name] + (link.latency_s or 0.0)


def _summary(calls: list[MeasuredRow]) -> str:
    largest = {call.name: call for call in calls}
    rates = ", ".join(f"{name} {bus_bytes(call) / call.timing.median_s / 1e9:.2f} GB/s" for name, call in largest.items())
    fastest_s = min(call.timing.median_s for call in calls if call.name == "all_reduce")
    return f"{rates}; the fastest all-reduce {1e3 * fastest_s:.2f} ms"


def _line(call: MeasuredRow) -> str:
    return f"{call.name:<15} {call.bytes >> 10:>6} KiB {1e3 * call.timing.median_s:>9.3f} ms"


if __name__ == "__main__":
    main()
