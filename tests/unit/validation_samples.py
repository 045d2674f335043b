"""Trials made by hand: one inside its interval, one outside, one out of memory, one that failed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuwise.notes.measuring import processors_used_by_others
from gpuwise.results.measurement import Timing
from gpuwise.results.validation import FAILED, MEASURED, OUT_OF_MEMORY, MeasuredStep, Trial, Validation
from gpuwise.strategy import Mesh, Strategy

FORECAST: dict[str, Any] = {
    "job": "tiny",
    "device": "here-cpu",
    "count": 1,
    "strategy": Strategy(micro_batch=8).to_dict(),
    "step_time_s": {"value": 0.011, "low": 0.009, "high": 0.014},
    "throughput": {"value": 727.27, "unit": "images/s"},
    "memory": {
        "peak_allocated_bytes": 1_010_000,
        "peak_reserved_bytes": 1_010_000,
        "device_bytes": 1_010_000,
        "capacity_bytes": 8 * 2**30,
        "fits": True,
        "by_category": {
            "parameter": 400_000,
            "gradient": 200_000,
            "optimizer_state": 0,
            "activation": 300_000,
            "temporary": 100_000,
            "input": 10_000,
            "communication_buffer": 0,
            "workspace": 0,
        },
    },
    "bound": {"compute": 0.7, "memory": 0.2, "launch": 0.1, "communication": 0.0, "input": 0.0},
    "provenance": {"step_time_s": "datasheet only", "memory": "trace"},
    "assumptions": ["assumed micro-batch 8; --micro-batch changes it"],
    "warnings": ["a <warning> | of sorts"],
}
MEMORY = {
    "parameter": 400_000,
    "gradient": 200_000,
    "optimizer_state": 0,
    "input": 10_000,
    "activations and temporaries": 390_000,
}
GOOD = Trial(
    "tiny",
    MEASURED,
    forecast=FORECAST,
    digest="d" * 32,
    device="cpu",
    threads=2,
    torch_version="2.13.0",
    seconds=9.5,
    measured=MeasuredStep(
        Timing(0.010, 0.0095, 0.0112, 0.0094, 500),
        1_000_000,
        MEMORY,
        shares={"arithmetic": 0.6, "moving bytes": 0.3, "overhead": 0.1},
    ),
)
SLOW = replace(
    GOOD,
    job="slow",
    measured=MeasuredStep(Timing(0.022, 0.02, 0.03, 0.02, 7), 1_000_000, MEMORY),
    disturbance_notes=(processors_used_by_others(share=0.31),),
)
LARGE = replace(
    GOOD,
    job="large",
    outcome=OUT_OF_MEMORY,
    message="can't allocate memory",
    ways_out=("a smaller --micro-batch",),
    measured=None,
    forecast={**FORECAST, "memory": {**FORECAST["memory"], "fits": False}},
)
BROKEN = Trial("broken", FAILED, "the sky fell", ways_out=("mend it",))


STEPS_OF_RANKS = (
    MeasuredStep(Timing(0.010, 0.0095, 0.0112, 0.0094, 500), 1_000_000, {"parameter": 400_000, "all else": 600_000}),
    MeasuredStep(Timing(0.012, 0.0115, 0.0132, 0.0114, 500), 900_000, {"parameter": 300_000, "all else": 600_000}),
)
OF_RANKS = replace(
    GOOD,
    job="ranks",
    measured=MeasuredStep.of_ranks(STEPS_OF_RANKS),
    forecast={**FORECAST, "strategy": Strategy(micro_batch=8, mesh=Mesh(pp=2), accumulation=2).to_dict()},
)


def validation(*trials: Trial, **changes: Any) -> Validation:
    taken = "2026-11-20T12:00:00+00:00"
    return replace(Validation(trials, "A machine, 2 cores", "here-cpu", taken, 30.0, history="/home/history.jsonl"), **changes)
