"""Rounds: every contestant once, in an order that turns, so that what the machine does meanwhile meets all alike."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import cache, partial
from importlib.metadata import version
from statistics import median
from typing import Any

from benchmarks.train_speed.children import Server

PRECISIONS = {"small": ("fp32",), "models": ("fp32", "amp-bf16"), "saves": ("fp32",)}
CONTESTANTS = {
    "small": (
        "gpuwise",
        "gpuwise, no folder",
        "gpuwise, data set",
        "by hand, index batches",
        "by hand, DataLoader",
        "accelerate",
        "Lightning",
        "Trainer",
    ),
    "models": (
        "gpuwise, data set",
        "by hand, DataLoader",
        "by hand, DataLoader, memory kept",
        "accelerate",
        "Lightning",
        "Trainer",
    ),
}


def names() -> dict[str, tuple[str, str, str]]:
    """Of each row of the results: its table, the name of its work there, and the precision."""
    from benchmarks.train_speed.works import TABLES

    rows = [(table, work, precision) for table, works in TABLES.items() for work in works for precision in PRECISIONS[table]]
    return {" ".join(row): row for row in rows}


def about() -> dict[str, Any]:
    """What all rows of the results have in common."""
    from benchmarks.train_speed.works import THREADS
    from gpuwise.hardware.detect import detect_cpu

    libraries = ("torch", "transformers", "accelerate", "lightning", "timm")
    return {
        "machine": detect_cpu().name,
        "threads": THREADS,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in libraries}},
    }


def measured(rows: Sequence[str], rounds: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """These rows, one after the other, each with its day and the machine's load before it and at its end.

    rounds: of the models; small steps take twice as many, and what saves cost is told by one run.
    """
    from benchmarks.train_speed.works import TABLES

    with ExitStack() as stack:
        server = cache(lambda who: stack.enter_context(Server(who)))
        for row in rows:
            table, name, precision = names()[row]
            work, ask = TABLES[table][name], partial(_told, server, table=table, work=name, precision=precision)
            results: dict[str, Any] = {"work": work.text, "precision": precision, "date": f"{datetime.now(UTC):%Y-%m-%d}"}
            load = [os.getloadavg()[0]]
            if table == "saves":
                results |= {"saves": ask("saved")}
            else:
                times = 2 * rounds if table == "small" else rounds
                results |= {"batch": work.batch, "timed": work.timed, **_rounds(ask, CONTESTANTS[table], work.timed, times)}
            yield row, {**results, "load": [*load, os.getloadavg()[0]]}


def _rounds(ask: Callable[[str], Any], contestants: Sequence[str], timed: int, rounds: int) -> dict[str, Any]:
    """Steps a second in each round, and how gpuwise and a loop by hand compare in turns."""
    rates, turns = [], []
    for number in range(rounds):
        first = number % len(contestants)
        seconds = {who: ask(who)[0] for who in (*contestants[first:], *contestants[:first])}
        rates.append({who: timed / seconds[who] for who in contestants})
        turns.append(_compared(ask("in turns")))
    return {"steps_per_s": rates, "turns": turns}


def _told(server: Callable[[str], Server], who: str, **request: str) -> Any:
    answer = server(who).ask(**request)
    print(*request.values(), who, "done", file=sys.stderr, flush=True)
    return answer


def _compared(told: dict[str, Any]) -> dict[str, Any]:
    """How gpuwise and a loop by hand compare in turns."""
    ours, hand = told["seconds"]["gpuwise"], told["seconds"]["by hand"]
    return {
        "turns": len(ours),
        "step_s": median(ours),
        "by_hand_s": median(hand),
        "ratio": median(a / b for a, b in zip(ours, hand, strict=True)),
        "same_loss": told["same_loss"],
    }
