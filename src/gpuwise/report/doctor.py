"""An Installation as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType

from gpuwise.report.parts import grid, heading, notes

if TYPE_CHECKING:
    from gpuwise.api.installation import Installation


def doctor_report(installation: Installation) -> Group:
    """Versions, machine, catalog, configuration, presets, and what should be mended."""
    found = installation
    parts: list[RenderableType] = [
        heading("versions"),
        grid([(name, version or "absent") for name, version in found.versions.items()]),
        heading("this machine"),
        grid([("here", found.machine), ("counts as", found.device), ("GPUs", ", ".join(found.gpus) or "none found")]),
        heading("catalog"),
        grid([
            ("chips", f"{found.chips:,}, with {found.unverified:,} figures unverified"),
            ("links", f"{found.links:,}"),
            ("offers", f"{found.offers:,}, {found.stale_offers:,} of them stale"),
            ("prices", f"of {found.prices_from} to {found.prices_to}"),
            ("your files", ", ".join(found.config_files) or "none"),
        ]),
        heading("recorded presets"),
        grid([(name, f"PyTorch {version}" if version else "missing") for name, version in found.presets.items()]),
    ]  # fmt: skip
    parts += notes("to mend", found.problems)
    return Group(*parts)
