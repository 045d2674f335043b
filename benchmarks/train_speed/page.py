"""docs/train-speed.md, from the results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "train_speed.json"
PAGE = ROOT / "docs" / "train-speed.md"
COMMAND = "python -m benchmarks.train_speed --write"
SMALL, LARGE = "gpuwise", "gpuwise, data set"  # what ratios are of: with log, checkpoints and progress on
WHAT = {
    "gpuwise": "gpuwise: log, checkpoints, progress on",
    "gpuwise, no folder": "gpuwise, nothing kept, progress on",
    "gpuwise, data set": "gpuwise, all on, the others' map-style data set",
    "by hand, index batches": "by hand, batches by index",
    "by hand, DataLoader": "by hand, DataLoader",
    "by hand, DataLoader, memory kept": "by hand, freed memory kept",
    "accelerate": "accelerate",
    "Lightning": "Lightning",
    "Trainer": "Hugging Face Trainer",
}
PEERS = ("by hand, DataLoader", "by hand, DataLoader, memory kept", "accelerate", "Lightning", "Trainer")


def page(results: dict[str, Any]) -> str:
    """The page, in Markdown."""
    about = results["about"]
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    lines = [
        f"<!-- Generated. {COMMAND} writes it; changes by hand are lost. -->",
        "# How fast gpuwise trains",
        "",
        f"Made by `{COMMAND}` on {about['machine']}, {about['threads']} threads; {versions}. Load: processes that wanted a "
        "core, before and at the end.",
        "",
        "Every contestant runs in a process of its own, once a round, in an order that turns; in it some steps warm up, "
        "the next are timed by the wall. Ratios are taken within a round; their median is given, with smallest and largest: "
        "above 1, gpuwise is faster.",
        "",
    ]
    for table, section in {"small": _small, "models": _models, "saves": _saves}.items():
        if rows := [row for name, row in results["rows"].items() if name.startswith(f"{table} ")]:
            lines += section(rows)
    return "\n".join([*lines, *_fairness()]).rstrip() + "\n"


def ratios(row: dict[str, Any], ours: str, other: str) -> list[float]:
    """How many times as fast as another gpuwise was, of each round."""
    return [rates[ours] / rates[other] for rates in row["steps_per_s"]]


def _small(rows: Sequence[dict[str, Any]]) -> list[str]:
    (row,) = rows
    rounds = row["steps_per_s"]
    return [
        "## Small steps",
        "",
        f"{row['work']}, AdamW, {row['timed']:,} steps a round, {len(rounds)} rounds ({_when(row)}): the trainer is most of "
        "the cost.",
        "",
        "| | steps/s (range) | gpuwise is so many times as fast |",
        "| --- | ---: | ---: |",
        *[
            f"| {WHAT[who]} | {_counted([rates[who] for rates in rounds])} | "
            f"{'' if who == SMALL else _factor(ratios(row, SMALL, who))} |"
            for who in rounds[0]
        ],
        "",
        "In turns, within one process, with a loop by hand of the same steps, batches by index, that keeps nothing: "
        f"{_turned(row)}",
        "",
    ]


def _models(rows: Sequence[dict[str, Any]]) -> list[str]:
    names = [WHAT[who] for who in PEERS]
    lines = [
        "## Models",
        "",
        "gpuwise with log, checkpoints and progress on, all with the same map-style data set. How many times as fast as",
        "",
        f"| | precision | gpuwise, a step | {' | '.join(names)} | rounds, on |",
        f"| --- | --- | ---: | {' | '.join('---:' for _ in names)} | --- |",
    ]
    for row in rows:
        step = median(1e3 / rates[LARGE] for rates in row["steps_per_s"])
        factors = " | ".join(_factor(ratios(row, LARGE, who)) for who in PEERS)
        rounds = f"{len(row['steps_per_s'])}, {_when(row)}"
        lines.append(f"| {row['work']} | {row['precision']} | {step:.0f} ms | {factors} | {rounds} |")
    lines += ["", "Step by step in turns with a loop by hand, within one process, which tells small differences apart:", ""]
    return [*lines, *[f"- {row['work']}, {row['precision']}: {_turned(row)}" for row in rows], ""]


def _saves(rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = [
        "## What a checkpoint costs",
        "",
        "Lost: what steps took longer, from the moment a save began until it was on the disk. The first save of a run makes "
        "room for the copy of the state; later ones use it again (medians; of what they lost smallest and largest, too: "
        "below 0, steps beside a save were shorter than before it). The interval is the one that gpuwise chose.",
        "",
        "| state | bytes | step | held up, first / later | written in | lost, first / later | interval | share lost | on |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in rows:
        first, later = row["saves"][0], row["saves"][1:]
        held_up_s, write_s, lost_s = (median(save[name] for save in later) for name in ("held_up_s", "write_s", "lost_s"))
        interval_s, all_lost_s = later[-1]["interval_s"], [save["lost_s"] for save in later]
        lost = f"{_time(lost_s)} ({_time(min(all_lost_s))} to {_time(max(all_lost_s))})"
        cells = [
            row["work"],
            f"{first['bytes'] / 1e6:,.0f} MB",
            _time(median(save["step_s"] for save in later)),
            f"{_time(first['held_up_s'])} / {_time(held_up_s)}",
            _time(write_s),
            f"{_time(first['lost_s'])} / {lost}",
            _time(interval_s),
            f"{max(0.0, lost_s) / interval_s:.1%}",
            _when(row),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _fairness() -> list[str]:
    return [
        "## What is fair, and what is not",
        "",
        "- The same model, data, batch, precision, threads and optimizer for all: PyTorch's fused AdamW of the same learning "
        "rate and weight decay, a constant learning rate, no clipping, no data-loader workers, incomplete batches left out.",
        "- The others save nothing and log to nowhere: Lightning has no logger, no checkpoints and no model summary, Trainer "
        "neither checkpoints nor reports, the loops by hand nothing at all. Progress is on at their defaults. gpuwise writes "
        "log and checkpoints to a disk. It and the loops by hand read the loss of each step, the others now and then.",
        "- Two things gpuwise does by itself that a loop could, too: where the data is tensors it takes the rows of many "
        "batches at once (beside it: its figures with the others' data set), and it keeps freed memory for the next step "
        "(beside it: the loop by hand that does).",
        "- What else gpuwise may choose by itself, bf16, channels-last, compile and the number of threads, is set to what the "
        "others have.",
        "- Processes are forked from one that has imported its libraries: no import is timed, and each run begins alike.",
        "- Small steps are saved at least twice while they are timed. Of the models no checkpoint falls into the few steps "
        "that are timed, as it falls into few of a long run; what it costs is told apart above.",
        "- Two cores of a machine shared with others: the ranges show what that does.",
    ]


def _when(row: dict[str, Any]) -> str:
    return f"{row['date']}, load {row['load'][0]:.1f} to {row['load'][1]:.1f}"


def _turned(row: dict[str, Any]) -> str:
    turns = row["turns"]
    results = [round_["ratio"] - 1 for round_ in turns]
    step, hand = (median(round_[name] for round_ in turns) for name in ("step_s", "by_hand_s"))
    same = "the same loss" if all(round_["same_loss"] for round_ in turns) else "NOT the same loss"
    return (
        f"{_time(step)} a step against {_time(hand)} by hand, {median(results):+.1%} ({min(results):+.1%} to "
        f"{max(results):+.1%}), {same} at the end."
    )


def _counted(rates: Sequence[float]) -> str:
    return f"{median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"


def _factor(found: Sequence[float]) -> str:
    return f"**{median(found):.2f}** ({min(found):.2f} to {max(found):.2f})"


def _time(seconds: float) -> str:
    if abs(seconds) < 1e-3:
        return f"{1e6 * seconds:.0f} µs"
    return f"{1e3 * seconds:.3g} ms" if abs(seconds) < 1 else f"{seconds:.3g} s"
