"""Holding: devices that hold a job which fits nowhere the user allows, and how."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.plan.buying.candidates import Candidate
from gpuwise.step_settings import flags_of
from gpuwise.strategy import Strategy


@dataclass(frozen=True)
class Holding:
    """Devices that hold a job, and how.

    Attributes:
        candidate: the offer, and how many of its machines.
        strategy: the fastest that fits them.
        flags: command-line flags that make `plan` consider them.
    """

    candidate: Candidate
    strategy: Strategy
    flags: str

    @property
    def words(self) -> str:
        """'the fewest devices that hold it: 32 × b300-288gb-sxm at aws (...), with --mesh dp_shard=16,tp=2; --on ...'"""
        how = flags_of(self.strategy, without=("precision",))
        return f"take the fewest devices that hold it, {self.candidate}: {self.flags} (with {how})"

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of the error `does-not-fit` of `gpuwise plan`, its entry `holds`."""
        item = self.candidate
        return {
            "device": item.chip.id,
            "count": item.devices,
            "machines": item.rented,
            "offer": item.offer.to_dict(),
            "strategy": self.strategy.to_dict(),
            "flags": self.flags,
        }
