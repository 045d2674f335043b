"""Notes on scaling curves: where more devices stop paying, and what holds of their points."""

from __future__ import annotations

from math import floor

from gpuwise.notes.note import kind_of_note
from gpuwise.units import counted


@kind_of_note()
def scaling_stops(*, devices: int, gain: float, dearer: float) -> str:
    """Beyond how many devices more do not pay.

    Arguments:
        gain: what the next doubling adds, as a share of the throughput.
        dearer: what a sample costs beyond at least, over what it costs on so many.
    """
    # Rounded down: a gain is below half, and a sample is no cheaper than printed.
    change = f"adds {floor(1000 * gain) / 10:.1f} % to" if gain > 0 else f"takes {floor(-1000 * gain) / 10:.1f} % from"
    return (
        f"scaling stops paying at {counted(devices, 'device')}: the next doubling {change} the throughput, "
        f"and from there a sample costs at least {floor(100 * dearer) / 100:.2f} times as much"
    )


@kind_of_note()
def scaling_pays(*, devices: int, gain: float, dearer: float, best: int) -> str:
    """More devices pay up to the most that were tried.

    Arguments:
        gain: what the last doubling adds, as a share of the throughput.
        dearer: what a sample costs on the most, over what it costs at best.
        best: devices where it costs least.
    """
    than = f"; a sample costs {dearer:.2f} times what it costs on {best:,}" if dearer > 1.005 else ""
    most = f"{counted(devices, 'device')}, the most with a forecast"
    return f"scaling pays up to {most}: the last doubling adds {100 * gain:.0f} % to the throughput{than}"


@kind_of_note()
def scaling_single_point(*, devices: int) -> str:
    """One number of devices fits the step: there is nothing to compare it with."""
    return f"of the numbers of devices tried, {devices:,} alone fits: nothing is known of how the step scales"


@kind_of_note()
def scaling_fits_nowhere(*, devices: int) -> str:
    """The step fits no number of devices."""
    return f"the step fits none of these numbers of devices, up to {devices:,}: `gpuwise fit` shows what frees memory"


@kind_of_note(flag="--global-batch")
def no_sample_for_each(*, global_batch: int, devices: str) -> str:
    """A global batch has no equal parts for some numbers of devices."""
    return f"a global batch of {global_batch:,} cannot be divided evenly among {devices} devices: they are left out"


@kind_of_note()
def left_out_of_scaling(*, devices: str, problem: str) -> str:
    """Some numbers of devices have no forecast."""
    return f"without a forecast on {devices} devices: {problem}"


@kind_of_note()
def priced_as_a_share(*, devices: int) -> str:
    """Fewer devices than the most are priced as their share of those. devices: the most."""
    return f"fewer devices are priced as their share of the {devices:,}"
