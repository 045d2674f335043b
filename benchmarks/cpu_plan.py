"""The settings gpuwise chooses on this CPU against the loop one writes first: fp32, eager, PyTorch's defaults.

    python -m benchmarks.cpu_plan [--only steps|candidates|operations] [--rounds N] [--write]

steps: seconds a step of both, in fresh processes that alternate; medians of the ratios and their range.
candidates: what could have been chosen, each measured beside its forecast; how long compiling took, and when it pays back.
operations: kernels of gpuwise.measure.networks in fp32 and bf16, plain and channels-last, by processor time on one core:
what the factors of generation-amd-avx-512.toml stand on.

Steps take 5 minutes on two cores, candidates as long; --write puts what ran into benchmarks/results/cpu_plan.json,
where the other part stays; each has its date, machine and PyTorch.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from gpuwise.notes import sentences
from gpuwise.strategy import HostSettings, Strategy

RESULTS = Path(__file__).parent / "results" / "cpu_plan.json"
# Preset, sequence length (0: none), samples a step.
JOBS = (("resnet50", 0, 8), ("gpt2", 256, 2))
LONG_RUN = 10_000  # steps
WARM, TIMED = 2, 6


# --- in a process of its own ---


def measured(name: str, seq_len: int, samples: int, strategy: dict[str, Any] | None) -> dict[str, float]:
    """Seconds of the first step and the median of later ones. strategy: None for the naive loop."""
    import torch

    from gpuwise.job import checked_batch, resolve
    from gpuwise.runtime.build.host_memory import keep_freed_memory
    from gpuwise.runtime.build.host_threads import apply_threads
    from gpuwise.runtime.build.program import build

    torch.manual_seed(0)
    job = resolve(name, seq_len=seq_len or None)
    batch = checked_batch(job, samples)
    if strategy is None:
        model = job.model()
        make = {"adamw": torch.optim.AdamW, "momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9)}[job.optimizer]
        optimizer = make(model.parameters(), lr=1e-3)

        def step() -> None:
            job.loss(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    else:
        keep_freed_memory()
        apply_threads(HostSettings())
        program = build(job, Strategy.from_dict(strategy), "cpu")

        def step() -> None:
            program.step([batch])

    seconds = []
    for _ in range(WARM + TIMED):
        begun = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begun)
    return {"first_s": seconds[0], "step_s": median(seconds[WARM:])}


def apart(name: str, seq_len: int, samples: int, strategy: Strategy | None) -> dict[str, float]:
    """That in a fresh process."""
    request = [name, seq_len, samples, None if strategy is None else strategy.to_dict()]
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.cpu_plan", "--child", json.dumps(request)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


# --- what is compared ---


def steps(rounds: int) -> Iterator[dict[str, Any]]:
    for name, seq_len, samples in JOBS:
        choice = chosen(name, seq_len, samples, given=())
        results = [[apart(name, seq_len, samples, s)["step_s"] for s in (None, choice.strategy)] for _ in range(rounds)]
        ratios = [naive / ours for naive, ours in results]
        forecast_s = choice.forecast.step_time_s.value
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(
            f"{name}: naive {median(n for n, _ in results):.3f} s, chosen {median(o for _, o in results):.3f} s (forecast "
            f"{forecast_s:.3f}), ratio {median(ratios):.2f} ({spread})",
            flush=True,
        )
        for reason in choice.reasons:
            print(f"    {reason}")
        yield {
            "job": name,
            "samples": samples,
            "seq_len": seq_len,
            "strategy": choice.strategy.to_dict(),
            "naive_s": median(n for n, _ in results),
            "chosen_s": median(o for _, o in results),
            "forecast_s": forecast_s,
            "ratio": median(ratios),
            "ratios": ratios,
            "reasons": list(sentences(choice.reasons)),
        }


def candidates() -> Iterator[dict[str, Any]]:
    from gpuwise.plan.cpu.compile_time import pays_back_after

    for name, seq_len, samples in JOBS:
        layouts = (False, True) if not seq_len else (False,)
        eager_s: dict[tuple[str, bool], float] = {}
        for precision, channels_last, compiled in [
            *((p, layout, False) for p in ("fp32", "amp-bf16") for layout in layouts),
            ("amp-bf16", layouts[-1], True),
        ]:
            start = Strategy(precision, micro_batch=samples, channels_last=channels_last, compile=compiled)
            choice = chosen(name, seq_len, samples, start=start, given=("precision", "channels_last", "compile"))
            seen = apart(name, seq_len, samples, start)
            row = {"job": name, "strategy": start.to_dict(), **seen, "forecast_s": choice.forecast.step_time_s.value}
            text = ""
            if compiled:
                took_s = seen["first_s"] - seen["step_s"]
                after = pays_back_after(took_s, eager_step_s=eager_s[precision, channels_last], compiled_step_s=seen["step_s"])
                row |= {"compile_s": took_s, "compile_forecast_s": choice.compile_s, "pays_back_after_steps": after}
                text = f"; compiling took {took_s:.0f} s (forecast {choice.compile_s:.0f}), pays back after {after:,} steps"
            else:
                eager_s[precision, channels_last] = seen["step_s"]
            words = " ".join(filter(None, (precision, "channels-last" * channels_last, "compiled" * compiled)))
            print(f"{name} {words}: {seen['step_s']:.3f} s, forecast {row['forecast_s']:.3f}{text}", flush=True)
            yield row


def chosen(name: str, seq_len: int, samples: int, *, given: tuple[str, ...], start: Strategy | None = None) -> Any:
    """What gpuwise chooses for a long run; forecasts by the model alone, whatever was measured of this very step."""
    from gpuwise.api.cpu_settings import cpu_settings
    from gpuwise.hardware import detect_machine, load_catalog

    machine = detect_machine(load_catalog())
    return cpu_settings(
        name,
        machine.chip,
        start or Strategy(micro_batch=samples),
        fixed=given,
        steps=LONG_RUN,
        capacity_bytes=machine.host_memory_bytes,
        seq_len=seq_len or None,
        history=False,
    )


# --- operations ---


def operations() -> None:
    import torch

    from gpuwise.measure.networks import NETWORKS
    from gpuwise.measure.observe import observe
    from gpuwise.measure.samples import StepSamples, samples_of
    from gpuwise.runtime.build.host_memory import keep_freed_memory

    time.perf_counter = time.process_time  # type: ignore[assignment]  # steadier than the clock on a shared machine
    keep_freed_memory()
    torch.set_num_threads(1)
    results: dict[tuple[str, bool], list[StepSamples]] = {}
    for name, job, samples in NETWORKS:
        with torch.device("meta"):
            images = any(p.dim() == 4 for p in job.model().parameters())
        for layout in (False, True) if images else (False,):
            for precision in ("fp32", "amp-bf16"):
                strategy = Strategy(precision, micro_batch=samples, channels_last=layout)
                seen = samples_of(name, observe(job, strategy, torch.device("cpu")))
                results.setdefault((precision, layout), []).append(seen)
    for (precision, layout), seen_all in results.items():
        table(f"{precision}{', channels-last' if layout else ''}", seen_all)


def table(title: str, seen: list[Any]) -> None:
    """Forecast over measured, by class, with the calibration that ships."""
    from dataclasses import replace

    from gpuwise.cost.calibration import calibration
    from gpuwise.cost.parameters import parameters
    from gpuwise.hardware import detect_machine, load_catalog
    from gpuwise.measure.calibrate import predicted_s
    from gpuwise.measure.samples import by_class

    here = detect_machine(load_catalog(), measured=False).chip
    cores = here.sm_count or 1
    core = replace(
        here,
        id="one core",
        sm_count=1,
        peak_flops_per_s={n: v / cores for n, v in here.peak_flops_per_s.items()},
        memory_bandwidth_bytes_per_s=(here.memory_bandwidth_bytes_per_s or 0) / cores,
    )
    print(f"{title}: {len(seen)} networks")
    classes = by_class(seen, core, parameters())
    total_s = sum(part.seconds @ part.count for part in classes.values())
    for key, part in sorted(classes.items(), key=lambda item: -(item[1].seconds @ item[1].count)):
        kernel_class, _, numerics = key.partition(".")
        known = calibration(core).find(kernel_class, numerics)
        seconds = part.seconds @ part.count
        if known is not None and seconds > 0.005 * total_s:
            ratio = part.count @ predicted_s(known.applied, part) / seconds
            print(f"    {key:42} {seconds / total_s:6.1%} of the time, forecast / measured {ratio:.2f}")


def write(made: dict[str, list[dict[str, Any]]]) -> None:
    """Puts these parts into the results; others stay as they are."""
    from importlib.metadata import version

    from gpuwise.hardware import detect_machine, load_catalog

    about = {"date": date.today().isoformat(), "machine": detect_machine(load_catalog()).name, "torch": version("torch")}
    results = json.loads(RESULTS.read_text(encoding="utf-8")) | {part: {**about, "rows": rows} for part, rows in made.items()}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("steps", "candidates", "operations"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.child:
        print(json.dumps(measured(*json.loads(options.child))))
        return
    if options.only == "operations":
        operations()
        return
    made: dict[str, list[dict[str, Any]]] = {}
    if options.only in (None, "steps"):
        made["steps"] = list(steps(options.rounds))
    if options.only in (None, "candidates"):
        made["candidates"] = list(candidates())
    if options.write:
        write(made)


if __name__ == "__main__":
    main()
