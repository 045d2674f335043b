"""The limits that users set on what a server's clients see."""

from __future__ import annotations

from gpuwise.errors import InputError
from gpuwise.serving.saturation import Limits
from gpuwise.units import parse_duration

_WAYS = ["write ttft=500ms,tpot=50ms,latency=10s,share=0.99, or some of them"]
LIMITS = {"ttft": "ttft_s", "tpot": "tpot_s", "latency": "latency_s"}


def parse_limits(text: str) -> Limits:
    """The limits of "ttft=500ms,tpot=50ms,share=0.95", without one for ""; InputError for anything else."""
    values: dict[str, float] = {}
    for name, value in limit_words(text):
        key = LIMITS.get(name, name)
        if key in values:
            raise InputError(f"--slo names {name} twice.", [f"write {name} once"])
        values[key] = _share(value) if name == "share" else parse_limit(value)
    if values.keys() == {"share"}:
        raise InputError("a share of requests must stay within some limit, and --slo names none.", _WAYS)
    return Limits(**values)


def limit_words(text: str) -> list[tuple[str, str]]:
    """Names and values of the limits in a text, names in lower case; InputError for what is no limit."""
    words = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (word.strip() for word in part.partition("="))
        if name.lower() not in (*LIMITS, "share") or not equals:
            raise InputError(f"{part!r} is not a limit.", _WAYS)
        words.append((name.lower(), value))
    return words


def parse_limit(text: str) -> float:
    """Seconds of a limit: '500ms'. Raises InputError, with examples of such lengths."""
    try:
        return parse_duration(text)
    except InputError as error:
        raise InputError(error.what, ["write it with a unit, like 500ms or 2s"]) from None


def _share(text: str) -> float:
    try:
        return float(text.rstrip("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise InputError(f"{text!r} is not a share.", ["write share=0.99 or share=99%"]) from None
