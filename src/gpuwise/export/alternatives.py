"""What would make a step cheaper on the same devices, or make it fit: a few changes, each priced, best first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

from gpuwise.cost.forecast import Forecast
from gpuwise.errors import GpuwiseError
from gpuwise.hardware.types import Chip
from gpuwise.plan.space.legal import precisions_for
from gpuwise.step_settings import flags_of
from gpuwise.strategy import RECOMPUTES, Mesh, Strategy, StrategyChanges

MOST = 3  # alternatives that are shown
LEAST_SAVED = 0.01  # share of the time a sample; less is within what a forecast can tell
_LARGER = (2, 4)  # times the micro-batch
_SLOW = ("fp32", "tf32")


@dataclass(frozen=True)
class Alternative:
    """A change of a strategy that takes less time a sample on the same devices, and so less money, or that makes it fit.

    Attributes:
        words: the change.
        keys: the keys of the trainer's file that it changes; "" where it has none.
        flags: the whole strategy on the command line.
        saved: share of the time and the money a sample; negative where it takes more.
        step_time_s: of its step.
        device_bytes: memory of one device.
        changes_training: whether the arithmetic of the training differs.
    """

    words: str
    keys: str
    flags: str
    saved: float
    step_time_s: float
    device_bytes: int
    changes_training: bool

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def alternatives(
    forecast: Forecast, chip: Chip, price: Callable[[Strategy], Forecast], keys_of: Callable[[Strategy], str]
) -> tuple[Alternative, ...]:
    """The changes that save most time a sample, or those that fit where the strategy does not, fastest first; at most MOST.

    Arguments:
        forecast: of the strategy as it is.
        chip: the device's.
        price: the forecast of another strategy on the same devices. Strategies for which it raises GpuwiseError are left out.
        keys_of: the keys of the trainer's file that another strategy changes.
    """
    strategy, fits = forecast.strategy, forecast.memory.fits
    before = forecast.step_time_s.value / strategy.global_batch
    options: list[Alternative] = []
    for words, changes in _smaller(strategy) if fits is False else _faster(strategy, chip):
        other = strategy.but(**changes)
        try:
            priced = price(other)
        except GpuwiseError:
            continue
        saved = 1 - priced.step_time_s.value / other.global_batch / before
        if priced.memory.fits is False or (fits is not False and saved < LEAST_SAVED):
            continue
        changed = other.precision != strategy.precision
        seconds, size = priced.step_time_s.value, priced.memory.device_bytes
        options.append(Alternative(words, keys_of(other), flags_of(other), saved, seconds, size, changed))
    return tuple(sorted(options, key=lambda one: -one.saved)[:MOST])


def _smaller(strategy: Strategy) -> Iterator[tuple[str, StrategyChanges]]:
    """Changes that take less memory and train the same, in words."""
    halves = [n for n in (1, 2, 4, 8) if strategy.micro_batch % n == 0]
    for recompute in ("none", "selective", "full"):
        for n in halves:
            changes: StrategyChanges = {
                "recompute": recompute,
                "micro_batch": strategy.micro_batch // n,
                "accumulation": strategy.accumulation * n,
            }
            words = [f"{recompute} recomputation"] if recompute not in ("none", strategy.recompute) else []
            words += [f"micro-batches of {strategy.micro_batch // n:,} x {strategy.accumulation * n:,}"] if n > 1 else []
            if words and RECOMPUTES.index(recompute) >= RECOMPUTES.index(strategy.recompute):
                yield " and ".join(words), changes


def _faster(strategy: Strategy, chip: Chip) -> Iterator[tuple[str, StrategyChanges]]:
    """Changes that may take less time, in words."""
    if strategy.offload != "none":
        yield "no offload", {"offload": "none"}
    if strategy.recompute != "none":
        yield "no recomputation", {"recompute": "none"}
    if strategy.recompute == "full":
        yield "selective recomputation", {"recompute": "selective"}
    able = precisions_for(chip, mode=strategy.mode)
    if strategy.precision in _SLOW and able and able[0] not in _SLOW:
        yield f"precision {able[0]}", {"precision": able[0]}
    if not strategy.compile:
        yield "torch.compile", {"compile": True}
    for times in _LARGER:
        if strategy.accumulation % times == 0:
            yield (
                f"micro-batches of {strategy.micro_batch * times:,} x {strategy.accumulation // times:,}",
                {"micro_batch": strategy.micro_batch * times, "accumulation": strategy.accumulation // times},
            )
    mesh = strategy.mesh
    if mesh.dp_shard > 1 and mesh.tp * mesh.pp * mesh.cp * mesh.ep == 1:
        yield "a copy on each device", {"mesh": Mesh(dp_replicate=mesh.data_parallel)}
        if strategy.parallelism.shard == "parameters":
            yield "gradients sharded, not parameters", {"parallelism": replace(strategy.parallelism, shard="gradients")}
