"""Checks of single values: one of several words, or a whole number in a range."""

from __future__ import annotations

from gpuwise.errors import InputError, shown


def check_choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    """Raises InputError for a value that is not among those allowed."""
    if value not in allowed:
        raise InputError(f"unknown {name} {shown(value)}.", [f"one of: {', '.join(map(str, allowed))}"])


def check_whole(name: str, value: object, low: int, high: int) -> None:
    """Raises InputError for anything but a whole number from low to high, both included."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InputError(f"{name} must be a whole number from {low} to {high:,}, got {shown(value)}.")


def check_switches(settings: object, *names: str) -> None:
    """Raises InputError for a field of `settings` among these names that is neither True nor False."""
    for name in names:
        check_choice(name.replace("_", " "), getattr(settings, name), (False, True))
