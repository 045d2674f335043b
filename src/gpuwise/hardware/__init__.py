"""Chips, links, machines and offers; each figure has a source and a date."""

from typing import TYPE_CHECKING

from gpuwise.lazy import lazily

if TYPE_CHECKING:
    from gpuwise.hardware.catalog import Catalog, load_catalog, user_files
    from gpuwise.hardware.detect import Cpu, Gpu, detect_cpu, detect_gpus, detect_machine
    from gpuwise.hardware.device import DeviceSpec, check_inside, parse_device
    from gpuwise.hardware.filters import Filter, parse_filter
    from gpuwise.hardware.links import link_between, link_inside, machine_of
    from gpuwise.hardware.pricelist import OfferRow
    from gpuwise.hardware.types import PEAKS, TERMS, Chip, Link, Machine, Offer, Source

__getattr__ = lazily(
    __name__,
    {
        "catalog": ("Catalog", "load_catalog", "user_files"),
        "detect": ("Cpu", "Gpu", "detect_cpu", "detect_gpus", "detect_machine"),
        "device": ("DeviceSpec", "check_inside", "parse_device"),
        "filters": ("Filter", "parse_filter"),
        "links": ("link_between", "link_inside", "machine_of"),
        "pricelist": ("OfferRow",),
        "types": ("PEAKS", "TERMS", "Chip", "Link", "Machine", "Offer", "Source"),
    },
)
__all__ = [
    "PEAKS",
    "TERMS",
    "Catalog",
    "Chip",
    "Cpu",
    "DeviceSpec",
    "Filter",
    "Gpu",
    "Link",
    "Machine",
    "Offer",
    "OfferRow",
    "Source",
    "check_inside",
    "detect_cpu",
    "detect_gpus",
    "detect_machine",
    "link_between",
    "link_inside",
    "load_catalog",
    "machine_of",
    "parse_device",
    "parse_filter",
    "user_files",
]
