"""The limits that users set on what a server's clients see."""

from __future__ import annotations

from gpuwise.errors import InputError
from gpuwise.serving.saturation import Limits
from gpuwise.units import parse_duration

LIMITS = {"ttft": "ttft_s", "tpot": "tpot_s", "latency": "latency_s"}


def parse_limits(text: str) -> Limits:
    """The limits of "ttft=500ms,tpot=50ms,share=0.95"; InputError for anything else."""
    values: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if name not in (*LIMITS, "share") or not equals:
            raise InputError(
                f"{part!r} is not a limit.", ["write ttft=500ms,tpot=50ms,latency=10s,share=0.99, or some of them"]
            )
        values[LIMITS.get(name, name)] = _share(value) if name == "share" else parse_duration(value)
    return Limits(**values)


def _share(text: str) -> float:
    try:
        return float(text.rstrip("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise InputError(f"{text!r} is not a share.", ["write share=0.99 or share=99%"]) from None
