"""Notes on the time and money of a run beside its plan."""

from __future__ import annotations

from gpuwise.notes.note import kind_of_note
from gpuwise.units import format_duration, format_usd


@kind_of_note()
def steps_beside_plan(*, seconds: float, share: float) -> str:
    """A step takes another time than its forecast. seconds: over the whole run; share: of the forecast."""
    return f"a step takes {abs(share):.0%} {'more' if share > 0 else 'less'} than forecast: {_difference(seconds)} in all"


@kind_of_note()
def part_beside_plan(*, part: str, seconds: float) -> str:
    """Something other than steps takes another time than planned. seconds: more than planned; negative for less."""
    return f"{part}: {_difference(seconds)} than planned"


@kind_of_note()
def billing_beside_time(*, usd: float, rentals: int) -> str:
    """What a provider's minimum, its rounding and idle rentals add to the hours that a run has used."""
    return f"{format_usd(usd)} for idle time, minimum and rounding of {rentals} rental{'' if rentals == 1 else 's'}"


@kind_of_note()
def ran_on_another_device(*, attempts: str, device: str, planned: str) -> str:
    """Attempts ran on a device that is not the plan's; they are counted at the plan's price."""
    return f"attempts {attempts} ran on {device}, not on {planned}; they are counted at the plan's price"


@kind_of_note()
def not_in_the_log() -> str:
    """What a run costs before and after its attempts."""
    return (
        "not in the log, and not counted: boot and installation before `gpuwise train`, the time from the last record of a "
        "killed attempt to its end, and data that leave the provider's network"
    )


def _difference(seconds: float) -> str:
    return f"{format_duration(abs(seconds))} {'more' if seconds >= 0 else 'less'}"
