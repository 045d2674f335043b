"""Pieces that reports share: tables, bars, lists of notes, and how strategies and intervals are worded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from rich import box
from rich.console import JustifyMethod
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpuwise.cost.forecast import Interval
from gpuwise.strategy import Mesh, Strategy
from gpuwise.units import format_bytes

BAR_CELLS = 24
UNKNOWN = "-"


def grid(rows: Iterable[tuple[str, str] | tuple[str, str, str]], *, indent: int = 2) -> Padding:
    """Labels, values and an optional remark, aligned."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    table.add_column(style="dim")
    for row in rows:
        table.add_row(*[Text(cell) for cell in row])
    return Padding(table, (0, 0, 0, indent), expand=False)


def columns(
    headers: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = (), wide: str | None = None
) -> Table:
    """A table with a rule under its headers.

    Arguments:
        right: headers of columns of numbers.
        wide: the one column whose text may wrap; the others keep their words together.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for header in headers:
        wraps = wide is None or header == wide
        justify: JustifyMethod = "right" if header in right else "left"
        table.add_column(header, justify=justify, no_wrap=not wraps, overflow="fold")
    for row in rows:
        table.add_row(*[Text(cell) for cell in row])
    return table


def bars(parts: Mapping[str, float], show: Callable[[float], str], *, indent: int = 2) -> Padding:
    """One line a part, largest first: a bar of its share of the sum, its value and its per cent. Zeros are left out."""
    total = sum(parts.values())
    rows = [(name, value / total, [show(value), percent(value / total)]) for name, value in parts.items() if value > 0]
    return _bars(rows, indent=indent)


def shares(parts: Mapping[str, float], *, indent: int = 2) -> Padding:
    """The same for shares of a whole, of which not all need be given. Below half a per cent they are left out."""
    return _bars([(name, share, [percent(share)]) for name, share in parts.items() if share >= 0.005], indent=indent)


def _bars(rows: Iterable[tuple[str, float, list[str]]], *, indent: int) -> Padding:
    table = Table.grid(padding=(0, 2))
    for name, share, figures in sorted(rows, key=lambda row: -row[1]):
        bar = Text("█" * max(1, round(BAR_CELLS * share)), style="cyan")
        table.add_row(Text(name.replace("_", " ")), bar, *[Text(figure, justify="right") for figure in figures])
    return Padding(table, (0, 0, 0, indent), expand=False)


def heading(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def notes(title: str, lines: Sequence[str]) -> list[Text | Padding]:
    """A titled list, or nothing."""
    if not lines:
        return []
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column()
    for line in dict.fromkeys(lines):
        table.add_row("-", Text(line))
    return [heading(title), Padding(table, (0, 0, 0, 2), expand=False)]


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def span(interval: Interval, show: Callable[[float], str]) -> str:
    """'(52 ms to 110 ms)'"""
    return f"({show(interval.low)} to {show(interval.high)})"


def number(value: float) -> str:
    """Three digits, and no exponents: '3,550', '0.42'."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def rate(value: float, unit: str) -> str:
    """'3,550 images/s', '0.42 samples/s'"""
    return f"{number(value)} {unit if '/' in unit else unit + '/s'}"


def memory_of(used_bytes: float, capacity_bytes: int | None) -> str:
    """'21.3 GiB of 79.6 GiB'"""
    of = f" of {format_bytes(capacity_bytes)}" if capacity_bytes is not None else ""
    return format_bytes(used_bytes) + of


def mesh_words(mesh: Mesh) -> str:
    """'dp_shard=8', or '' for one device."""
    axes = ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep")
    return ",".join(f"{axis}={getattr(mesh, axis)}" for axis in axes if getattr(mesh, axis) > 1)


def strategy_words(strategy: Strategy) -> str:
    """'amp-bf16, micro-batch 8 x 4, recompute full, dp_shard=8': what a person needs to run it so."""
    batch = f"micro-batch {strategy.micro_batch:,}"
    if strategy.accumulation > 1:
        batch += f" x {strategy.accumulation:,}"
    recompute = f"recompute {strategy.recompute}" if strategy.recompute != "none" else ""
    mode = "inference" if strategy.mode == "infer" else ""
    parts = [strategy.precision, batch, recompute, mesh_words(strategy.mesh), strategy.optimizer or "", mode]
    return ", ".join(part for part in parts if part)
