"""What decides between the rows of a ServingForecast: budget, an API's price, the cheapest by rate, the command to start."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from gpuwise.report.parts import TextTable, columns, grid, heading, indented, notes, number
from gpuwise.serving.apart import PromptsApart
from gpuwise.serving.fleets import RateRange
from gpuwise.serving.forecast import ServingForecast
from gpuwise.serving.launch import CACHE_OPTIONS, PRESET_WEIGHTS, UNKNOWN_MODEL, needs_narrow_weights
from gpuwise.serving.rows import ServingRow
from gpuwise.units import format_usd

COMMAND_WIDTH = 74  # characters of a line of a command, which a terminal of 80 must not wrap
MOST_RANGES = 12  # lines of the table by rate


def choice_parts(forecast: ServingForecast) -> list[RenderableType]:
    """The parts below the table of rows."""
    served = [row for row in forecast.rows if row.replicas]
    parts: list[RenderableType] = []
    if forecast.budget_usd_per_month is not None:
        over = [f"{row.device}: {_month(row)}" for row in served if row.over_budget]
        parts += notes(f"above the budget of {format_usd(forecast.budget_usd_per_month)} a month", over)
    if forecast.api is not None and forecast.api_usd_per_month is not None:
        parts += [heading(f"an API at {_api_words(forecast)}"), grid(_api_rows(forecast, served))]
    if forecast.by_rate:
        parts += [heading("cheapest by rate"), _by_rate(forecast.by_rate)]
    if served and served[0].launch:
        launch = served[0].launch
        is_script = "\n" in launch  # whose lines nothing may break or indent
        parts += [heading(f"start each {served[0].device} with")]
        parts += [Text(launch, no_wrap=True) if is_script else indented(command_lines(launch))]
        parts += [indented(words)] if (words := _model_words(forecast)) else []
        parts += [indented(f"{file} is a file with: {text}") for file, text in (CACHE_OPTIONS,) if file in launch]
    if served and isinstance(served[0].mode, PromptsApart) and served[0].mode.launch:
        parts += [heading(f"start each {served[0].mode.device} that reads prompts with")]
        parts += [indented(command_lines(served[0].mode.launch))]
        parts += [indented("a proxy of your own sends each request to one that reads prompts, then to one that writes")]
    parts += notes("prices of", [f"{row.device}: {row.offer}" for row in served if row.offer])
    return parts


def command_lines(command: str) -> str:
    """A command on lines that a shell joins."""
    lines = [""]
    for word in map(shlex.quote, shlex.split(command)):
        if lines[-1] and len(lines[-1]) + len(word) >= COMMAND_WIDTH:
            lines.append("")
        lines[-1] += f"{' ' if lines[-1] else ''}{word}"
    return " \\\n".join(lines)


def rate_words(rate_per_s: float) -> str:
    """'22.5/s', or '12/h' for few."""
    return f"{number(rate_per_s)}/s" if rate_per_s >= 0.1 else f"{number(rate_per_s * 3600)}/h"


def small_usd(value: float) -> str:
    """Dollars of three digits where they are cents: '$0.0123'."""
    return f"${value:.3g}" if 0 < value < 1 else format_usd(value)


def _month(row: ServingRow) -> str:
    return "no price" if row.usd_per_month is None else f"{format_usd(row.usd_per_month)} a month"


def _api_words(forecast: ServingForecast) -> str:
    assert forecast.api is not None
    read, written = small_usd(forecast.api.input_usd), small_usd(forecast.api.output_usd)
    return f"{read} a million tokens read and {written} written"


def _api_rows(forecast: ServingForecast, served: Sequence[ServingRow]) -> list[tuple[str, str]]:
    rows = [("the same requests", f"{format_usd(forecast.api_usd_per_month or 0.0)} a month")]
    for row in served:
        if row.fleet is None:
            if isinstance(row.mode, PromptsApart):
                rows.append((row.device, "not compared: two kinds of instance serve"))
            continue
        even = row.break_even
        if even is None:
            words = "cheaper at no rate"
        else:
            always = even.always_from_per_s
            later = "" if always == even.from_per_s else f", at every rate from {rate_words(always)} on"
            low = f"from {rate_words(even.from_per_s)}" if even.from_per_s else "at low rates" if later else "at any rate"
            words = f"cheaper {low}{later}"
        rows.append((row.device, words))
    return rows


def _by_rate(ranges: Sequence[RateRange]) -> TextTable:
    lines = [
        (rate_words(each.up_to_per_s), each.device, _ends([f"{n:,}" for n in each.replicas]), _ends(_usd(each)))
        for each in ranges[:MOST_RANGES]
    ]
    if len(ranges) > MOST_RANGES:
        lines.append((rate_words(ranges[-1].up_to_per_s), f"{len(ranges) - MOST_RANGES} more ranges: --json", "", ""))
    return columns(["up to", "instance", "how many", "$ a month"], lines, right=["up to", "how many", "$ a month"])


def _usd(each: RateRange) -> list[str]:
    return [format_usd(usd) for usd in each.usd_per_month]


def _ends(ends: Sequence[str]) -> str:
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def _model_words(forecast: ServingForecast) -> str:
    narrow = needs_narrow_weights(forecast.engine, forecast.weights)
    in_format = f" in {forecast.weights}" if narrow else ""
    if forecast.model == UNKNOWN_MODEL:
        engine = forecast.engine.partition(" ")[0]
        return f"{UNKNOWN_MODEL}: the id or the folder of the model's weights{in_format}, of an architecture that {engine} has"
    if forecast.job in PRESET_WEIGHTS:
        shape = f"{forecast.job} is a shape without weights"
        if narrow:
            return f"{UNKNOWN_MODEL}: weights of {forecast.model}{in_format}, made or published elsewhere; {shape}"
        return f"{shape}: {forecast.model} has such weights, a fine-tuned one serves as fast"
    return f"the weights of {forecast.model} must be{in_format}" if narrow else ""
