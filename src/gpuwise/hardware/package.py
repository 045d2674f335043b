"""Packages that are sold as one but have several devices: boards of two GPUs, modules of two dies, TPUs of two cores."""

from __future__ import annotations

from dataclasses import replace

from gpuwise.hardware.types import PEAKS, Chip, Source

_SHARES = {2: "half", 4: "a quarter", 8: "an eighth"}
# What a package has as many times as it has devices. Link and PCIe slot are the package's as they stand.
_ADDED_UP = (
    "memory_bytes",
    "memory_bandwidth_bytes_per_s",
    "l2_bytes",
    "sm_count",
    "cuda_cores",
    "tensor_cores",
    "tdp_w",
    "msrp_usd",
    "street_price_usd",
)


def share_words(chip: Chip) -> str:
    """'half of one MI250X module'; "" for a device that is sold alone."""
    if chip.devices_per_package == 1:
        return ""
    share = _SHARES.get(chip.devices_per_package, f"1/{chip.devices_per_package}")
    return f"{share} of one {chip.package}"


def whole_package(chip: Chip) -> Chip:
    """The package as one device, as drivers show it that are told to (Intel's with ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE)."""
    count = chip.devices_per_package
    figures = {name: value * count for name in _ADDED_UP if (value := getattr(chip, name)) is not None}
    changed = [*figures, *chip.peak_flops_per_s]
    sources = {name: _times(chip.source_of(name), count) for name in changed}
    peaks = {name: chip.peak_flops_per_s[name] * count for name in PEAKS if name in chip.peak_flops_per_s}
    return replace(
        chip,
        id="here-gpu",
        name=f"{chip.package} as one device",
        package="",
        devices_per_package=1,
        **figures,
        peak_flops_per_s=peaks,
        sources={**chip.sources, **sources},
    )


def _times(source: Source, count: int) -> Source:
    return replace(source, text=f"{source.text}, times {count}")
