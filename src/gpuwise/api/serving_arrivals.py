"""How requests come to what serve_plan plans: evenly at random, in bursts, along a day, or as in a file."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from gpuwise.errors import InputError
from gpuwise.notes import Note
from gpuwise.notes import serving as notes
from gpuwise.notes import serving_load as load_notes
from gpuwise.serving.closed_loop import MOST_CLIENTS
from gpuwise.serving.days import DayCurve, parse_day
from gpuwise.serving.instance import LoadShape
from gpuwise.serving.lengths import Lengths
from gpuwise.serving.recorded_load import day_curve, recorded_lengths, recorded_load
from gpuwise.serving.request_log import RequestLog, read_log
from gpuwise.serving.schedule import CONSTANT, DAY_S, FleetSchedule
from gpuwise.serving_settings import ServingSettings
from gpuwise.step_settings import flag_of
from gpuwise.units import parse_rate

INPUT_TOKENS, OUTPUT_TOKENS = 512, 256
BURSTY = 2.0  # standard deviation of gaps over their mean where the user says "bursty" alone; an assumption
MOST_VARIATION = 20.0
CLOSE_MEAN = 0.05  # of a mean: twice the sampling error of as many lengths as a simulated load has, at a spread of 1
# What says how an open load comes, or what follows its rate.
_OPEN = ("arrivals", "day", "autoscale", "scale_to_zero", "idle", "spot", "api_price")
_OF_THE_FILE = ("input", "output", "spread", "arrivals", "day")


@dataclass(frozen=True)
class PlannedLoad:
    """The load that serve_plan plans for.

    Attributes:
        shape: its requests, at the rate of the busiest time.
        rate_per_s: mean rate.
        schedule: its rate over the day, without what the instances bring in.
        arrivals: how requests come, for the document.
        lengths: of prompts and answers, for the document.
        clients: users of a closed loop; None (default) where requests come at a rate.
    """

    shape: LoadShape
    rate_per_s: float
    schedule: FleetSchedule
    arrivals: dict[str, object]
    notes: tuple[Note, ...]
    lengths: dict[str, object]
    clients: int | None = None


def planned_load(requested: ServingSettings, *, rate: str | None, longest: int | None) -> PlannedLoad:
    """The load that the settings describe. longest: the model's context; None without a limit.

    Raises InputError for settings that are senseless or exclude each other, FileFormatError for a broken file.
    """
    cached = _prefix_hits(requested)
    rate_per_s = None if rate is None else parse_rate(rate)
    clients, trace = _clients(requested, rate=rate), requested.get("trace")
    if trace is not None and clients is not None:
        return _of_lengths(trace, requested, clients=clients, cached=cached, longest=longest)
    if trace is not None:
        return _of_file(trace, requested, rate_per_s=rate_per_s, cached=cached, longest=longest)
    if rate_per_s is None and clients is None:
        raise InputError("serving needs a rate of requests.", ["--rate 5/s", "--trace FILE, or --concurrency 20 users"])
    spread = _number(requested.get("spread"), 1.0)
    lengths = Lengths(
        _number(requested.get("input"), INPUT_TOKENS),
        _number(requested.get("output"), OUTPUT_TOKENS),
        input_variation=spread,
        output_variation=spread,
        longest=longest,
    )
    variation = parse_arrivals(requested.get("arrivals") or "poisson")
    day = None if requested.get("day") is None else parse_day(requested["day"] or "")
    follows = bool(requested.get("autoscale"))
    if follows and day is None:
        raise InputError("--autoscale needs rates that change over the day.", ["--day office", "--trace FILE of a day or more"])
    assumed = (
        *(() if "input" in requested else (notes.assumed_input_tokens(tokens=INPUT_TOKENS),)),
        *(() if "output" in requested else (notes.assumed_output_tokens(tokens=OUTPUT_TOKENS),)),
        notes.spread_of_lengths(variation=spread),
        *_means_as_drawn(lengths),
        _arrivals_note(variation, clients),
        *(() if day is None else (load_notes.sized_for_the_peak(multiple=day.peak, hour=day.peak_hour),)),
    )
    return PlannedLoad(
        LoadShape(lengths, cached_share=cached, variation=variation),
        rate_per_s or 0.0,
        CONSTANT if day is None else FleetSchedule(day.multiples, follows=follows),
        _arrivals(variation, clients, day),
        assumed,
        {"input_tokens": lengths.input_tokens, "output_tokens": lengths.output_tokens, "spread": spread},
        clients,
    )


def _prefix_hits(requested: ServingSettings) -> float:
    """Share of each prompt in the prefix cache."""
    share = float(requested.get("prefix_hits") or 0.0)
    if not 0 <= share < 1:
        raise InputError(
            f"--prefix-hits is a share of each prompt from 0 to below 1, got {share:g}: its last token is always computed.",
            ["--prefix-hits 0.95", "leave out --prefix-hits"],
        )
    return share


def _clients(requested: ServingSettings, *, rate: str | None) -> int | None:
    """Users of a closed loop; None where requests come at a rate."""
    clients = requested.get("concurrency")
    if clients is None:
        return None
    if not 1 <= clients <= MOST_CLIENTS:
        raise InputError(
            f"--concurrency is 1 to {MOST_CLIENTS:,} users, got {clients:,}.", ["--rate, for requests that come by themselves"]
        )
    others = [*(["rate"] if rate is not None else []), *(name for name in _OPEN if requested.get(name))]
    if others:
        flag = flag_of(others[0])
        raise InputError(
            f"users of --concurrency wait for their answers, and {flag} is of requests that come by themselves.",
            [f"leave out {flag}", "leave out --concurrency"],
        )
    return clients


def _means_as_drawn(lengths: Lengths) -> tuple[Note, ...]:
    """A note where requests are shorter or longer on average than their means say: cut to the context, or whole tokens."""
    load = LoadShape(lengths).at(1.0)
    read, written = float(load.input_tokens.mean()), float(load.output_tokens.mean())
    if max(abs(read / lengths.input_tokens - 1), abs(written / lengths.output_tokens - 1)) <= CLOSE_MEAN:
        return ()
    return (load_notes.means_as_drawn(input_tokens=read, output_tokens=written, longest=lengths.longest or 0),)


def _arrivals(variation: float, clients: int | None, day: DayCurve | None) -> dict[str, object]:
    if clients:
        return {"kind": "closed loop", "clients": clients}
    return {"kind": "poisson" if variation == 1 else "bursty", "variation": variation, **_day(day)}


def _day(day: DayCurve | None) -> dict[str, object]:
    return {} if day is None else {"day": asdict(day)}


def _arrivals_note(variation: float, clients: int | None) -> Note:
    if clients:
        return load_notes.users_wait_for_answers(clients=clients)
    return notes.poisson_arrivals() if variation == 1 else load_notes.bursty_arrivals(variation=variation)


def parse_arrivals(text: str) -> float:
    """Variation of the gaps of "poisson", "bursty" or "bursty=3"; InputError for anything else."""
    name, equals, value = (word.strip() for word in text.partition("="))
    ways = ["--arrivals poisson", f"--arrivals bursty=3 (from above 0 to {MOST_VARIATION:g})"]
    if name == "poisson" and not equals:
        return 1.0
    if name != "bursty":
        raise InputError(f"{text!r} is no kind of arrivals.", ways)
    try:
        variation = float(value) if equals else BURSTY
    except ValueError:
        variation = 0.0
    if not 0 < variation <= MOST_VARIATION:
        raise InputError(f"{value!r} is no variation of gaps between requests.", ways)
    return variation


def _of_file(
    path: str, requested: ServingSettings, *, rate_per_s: float | None, cached: float, longest: int | None
) -> PlannedLoad:
    """The load of a file of requests."""
    _check_of_the_file(requested)
    log = read_log(path)
    shape, cut = recorded_load(log, cached_share=cached, longest=longest)
    day, multiple = day_curve(log), max(1.0, shape.recorded_per_s / log.rate_per_s)
    if requested.get("autoscale"):
        if day is None:
            raise InputError(
                f"{log.name} is shorter than a day, so its hours have no rates of their own.", ["leave out --autoscale"]
            )
        schedule = FleetSchedule(day.multiples, follows=True)
        sized = load_notes.sized_for_the_peak(multiple=day.peak, hour=day.peak_hour)
    else:
        schedule = FleetSchedule((multiple,)) if multiple > 1 else CONSTANT
        sized = load_notes.sized_for_the_busiest_part(multiple=multiple)
    lengths = shape.lengths
    return PlannedLoad(
        shape,
        log.rate_per_s if rate_per_s is None else rate_per_s,
        schedule,
        {
            "kind": "trace",
            "file": log.name,
            "requests": len(log.arrival_s),
            "rate_per_s": log.rate_per_s,
            "failed": log.failed,
            **_day(day),
        },
        (
            *_file_notes(log, shape.recorded_count, rate_per_s=rate_per_s, cut=cut, longest=longest),
            *((sized,) if schedule.peak > 1 else ()),
        ),
        _lengths_of_document(lengths),
    )


def _of_lengths(path: str, requested: ServingSettings, *, clients: int, cached: float, longest: int | None) -> PlannedLoad:
    """Users who wait, whose requests are as long as those of a file."""
    _check_of_the_file(requested)
    log = read_log(path, timed=False)
    shape, cut = recorded_lengths(log, cached_share=cached, longest=longest)
    return PlannedLoad(
        shape,
        0.0,
        CONSTANT,
        {**_arrivals(1.0, clients, None), "file": log.name, "requests": len(log.arrival_s), "failed": log.failed},
        (
            load_notes.lengths_of_requests(file=log.name, count=len(log.arrival_s)),
            *_lines_notes(log, cut=cut, longest=longest),
            load_notes.users_wait_for_answers(clients=clients),
        ),
        _lengths_of_document(shape.lengths),
        clients,
    )


def _check_of_the_file(requested: ServingSettings) -> None:
    """Raises InputError for a setting that a file of requests brings."""
    for name in _OF_THE_FILE:
        if name in requested:
            raise InputError(f"--trace brings what {flag_of(name)} says.", [f"leave out {flag_of(name)}", "leave out --trace"])


def _lengths_of_document(lengths: Lengths) -> dict[str, object]:
    return {
        "input_tokens": lengths.input_tokens,
        "output_tokens": lengths.output_tokens,
        "input_spread": lengths.input_variation,
        "output_spread": lengths.output_variation,
        "correlation": lengths.correlation,
    }


def _file_notes(log: RequestLog, replayed: int, *, rate_per_s: float | None, cut: int, longest: int | None) -> tuple[Note, ...]:
    return (
        load_notes.replayed_requests(
            file=log.name,
            count=len(log.arrival_s),
            replayed=replayed,
            rate_per_s=log.rate_per_s,
            days=log.span_s / DAY_S,
        ),
        *(() if rate_per_s is None else (load_notes.scaled_requests(factor=rate_per_s / log.rate_per_s),)),
        *_lines_notes(log, cut=cut, longest=longest),
    )


def _lines_notes(log: RequestLog, *, cut: int, longest: int | None) -> tuple[Note, ...]:
    """What of a file's lines is not replayed as it stands."""
    return (
        *((load_notes.failed_requests(file=log.name, count=log.failed),) if log.failed else ()),
        *((load_notes.cut_requests(count=cut, context_tokens=longest or 0),) if cut else ()),
        *((load_notes.unread_columns(file=log.name, columns=", ".join(log.unread)),) if log.unread else ()),
    )


def _number(value: float | None, default: float) -> float:
    return float(default if value is None else value)
