"""Rounds: every contestant once, in an order that turns, so that what the machine does meanwhile meets all alike."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import version
from statistics import median
from typing import Any

from benchmarks.train_speed.children import Server

PRECISIONS = ("fp32", "amp-bf16")
SMALL = ("gpuwise", "gpuwise, no folder", "gpuwise, data set", "by hand, index batches", "by hand, DataLoader", "accelerate",
         "Lightning", "Trainer")  # fmt: skip
LARGE = ("gpuwise, data set", "by hand, DataLoader", "by hand, DataLoader, memory kept", "accelerate", "Lightning", "Trainer")


def measured(parts: Sequence[str], rounds: int) -> dict[str, Any]:
    """The results of these parts: "small", "models", "saves"."""
    from benchmarks.train_speed import works

    results: dict[str, Any] = {"about": _about()}
    if "small" in parts:
        results["small"] = _rounds("small", {"mlp": works.MLP}, SMALL, ("fp32",), rounds=2 * rounds)
    if "models" in parts:
        results["models"] = _rounds("models", works.MODELS, LARGE, PRECISIONS, rounds=rounds)
    if "saves" in parts:
        with Server("saved") as server:
            results["saves"] = [{"state": name, "text": work.text, "saves": _told(server, "saves", name)}
                                for name, work in works.SAVED.items()]  # fmt: skip
    results["about"]["load"] = [results["about"]["load"], os.getloadavg()[0]]
    return results


def _rounds(table: str, works: dict[str, Any], names: Sequence[str], precisions: Sequence[str], *,
            rounds: int) -> list[dict[str, Any]]:  # fmt: skip
    """Of each work and precision: steps a second in each round, and how gpuwise and a loop by hand compare in turns."""
    found = []
    with ExitStack() as stack:
        servers = {name: stack.enter_context(Server(name)) for name in (*names, "in turns")}
        for name, work in works.items():
            for precision in precisions:
                rates: list[dict[str, float]] = []
                turns: list[dict[str, Any]] = []
                for number in range(rounds):
                    order = [*names[number % len(names) :], *names[: number % len(names)]]
                    taken = {who: _told(servers[who], table, name, precision=precision)[0] for who in order}
                    rates.append({who: work.timed / taken[who] for who in names})
                    turns.append(_compared(_told(servers["in turns"], table, name, precision=precision)))
                found.append({"work": work.text, "precision": precision, "batch": work.batch, "timed": work.timed,
                              "steps_per_s": rates, "turns": turns})  # fmt: skip
    return found


def _told(server: Server, works: str, work: str, **how: Any) -> Any:
    answer = server.ask(works=works, work=work, **how)
    print(work, how.get("precision", ""), server.contestant, "done", file=sys.stderr, flush=True)
    return answer


def _compared(told: dict[str, Any]) -> dict[str, Any]:
    ours, hand = told["seconds"]["gpuwise"], told["seconds"]["by hand"]
    return {"turns": len(ours), "step_s": median(ours), "by_hand_s": median(hand),
            "ratio": median(a / b for a, b in zip(ours, hand, strict=True)), "same_loss": told["same_loss"]}  # fmt: skip


def _about() -> dict[str, Any]:
    from benchmarks.train_speed.works import THREADS
    from gpuwise.hardware.detect import detect_cpu

    libraries = ("torch", "transformers", "accelerate", "lightning", "timm")
    return {"machine": detect_cpu().name, "threads": THREADS, "taken": f"{datetime.now(UTC):%Y-%m-%d}",
            "versions": {"python": platform.python_version(), **{name: version(name) for name in libraries}},
            "load": os.getloadavg()[0]}  # fmt: skip
