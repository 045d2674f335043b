"""Pieces that reports share: tables, bars, lists of notes, and how strategies and intervals are worded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.table import Table
from rich.text import Text

from gpuwise.cost.forecast import Interval
from gpuwise.hardware.types import Offer
from gpuwise.plan.time_and_money import instance_words
from gpuwise.strategy import Mesh, Strategy
from gpuwise.units import format_bytes

BAR_CELLS = 24
UNKNOWN = "-"
COUNTED = "~"  # before memory whose tensors were counted, without a replay of the allocator
_GAP = 3  # characters between two columns
_LEAST_WIDE = 24  # characters of the column that wraps; a table with less room is folded


def grid(rows: Iterable[tuple[str, str] | tuple[str, str, str]], *, indent: int = 2) -> Table:
    """Labels, values and an optional remark, aligned."""
    rows = list(rows)
    table = _indented(indent)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    if any(len(row) > 2 for row in rows):
        table.add_column(style="dim", overflow="fold")
    for row in rows:
        table.add_row("", *[Text(cell) for cell in row])
    return table


def _indented(indent: int) -> Table:
    """A grid with an empty first column. A Padding around the grid would measure it too narrow where text wraps."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=max(0, indent - 2))
    return table


@dataclass(frozen=True)
class TextTable:
    """A table with a rule under its headers, that folds instead of losing words where it is too narrow.

    right: headers of columns of numbers. wide: the one column whose text may wrap.
    narrow: groups of headers that share a column, one under the other, where the table does not fit beside each other.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[str] = ()
    wide: str | None = None
    narrow: Sequence[Sequence[str]] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        side_by_side = [(header,) for header in self.headers]
        if self._least_width() <= options.max_width:
            yield self._table(side_by_side, self.wide)
        else:
            yield self._table(self.narrow or side_by_side, None)

    def _least_width(self) -> int:
        """What the table needs side by side, with no word broken; rich's own measure takes all columns to wrap."""
        widths = [max(map(cell_len, (header, *(row[i] for row in self.rows)))) for i, header in enumerate(self.headers)]
        if self.wide is not None:
            index = self.headers.index(self.wide)
            widths[index] = min(widths[index], _LEAST_WIDE)
        return sum(widths) + _GAP * (len(widths) - 1)

    def _table(self, groups: Sequence[Sequence[str]], wide: str | None) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
        indices = [[self.headers.index(name) for name in group] for group in groups]
        # The rows decide what may wrap: of folded columns only those of text, whose first header is not a number's.
        for group in groups:
            number = group[0] in self.right
            justify: JustifyMethod = "right" if number else "left"
            wraps = group[0] == wide if len(groups) == len(self.headers) and wide else not number
            table.add_column(
                "\n".join(group).rstrip(),
                justify=justify,
                no_wrap=not wraps,
                overflow="fold",
                min_width=_LEAST_WIDE if wraps and wide else None,
            )
        for row in self.rows:
            table.add_row(*[_stacked([row[i] for i in group]) for group in indices])
        return table


def columns(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Sequence[str] = (),
    wide: str | None = None,
    narrow: Sequence[Sequence[str]] = (),
) -> TextTable:
    """The table of these rows; without a wide column all but numbers may wrap."""
    return TextTable(headers, list(rows), right, wide, narrow)


def _stacked(cells: Sequence[str]) -> Text:
    """Cells one under the other; those below the first are dim."""
    first, *rest = cells
    below = [Text(f"\n{cell}", style="dim") for cell in rest]
    while below and below[-1].plain == "\n":
        below.pop()
    return Text.assemble(first, *below)


def bars(parts: Mapping[str, float], show: Callable[[float], str], *, indent: int = 2) -> Table:
    """One line a part, largest first: a bar of its share of the sum, its value and its per cent. Zeros are left out."""
    total = sum(parts.values())
    rows = [(name, value / total, [show(value), percent(value / total)]) for name, value in parts.items() if value > 0]
    return _bars(rows, indent=indent)


def shares(parts: Mapping[str, float], *, indent: int = 2) -> Table:
    """The same for shares of a whole, of which not all need be given. Below half a per cent they are left out."""
    return _bars([(name, share, [percent(share)]) for name, share in parts.items() if share >= 0.005], indent=indent)


def _bars(rows: Iterable[tuple[str, float, list[str]]], *, indent: int) -> Table:
    table = _indented(indent)
    for name, share, figures in sorted(rows, key=lambda row: -row[1]):
        bar = Text("█" * max(1, round(BAR_CELLS * share)), style="cyan")
        table.add_row("", Text(name.replace("_", " ")), bar, *[Text(figure, justify="right") for figure in figures])
    return table


def heading(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def indented(text: str) -> Table:
    """A paragraph that wraps under itself."""
    table = _indented(2)
    table.add_column(overflow="fold")
    table.add_row("", Text(text))
    return table


def notes(title: str, lines: Sequence[str]) -> list[Text | Table]:
    """A titled list, or nothing."""
    if not lines:
        return []
    table = Table.grid(padding=0)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for line in dict.fromkeys(lines):
        table.add_row("  - ", Text(line))
    return [heading(title), table]


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


def offer_words(offer: Offer, count: float | None = None) -> str:
    """Provider and instance; the provider once where the instance names it too.

    count: devices of the plan, of which several of the offer may make up; None (default) for those of one.
    """
    named = offer.instance.lower().startswith(offer.provider.lower())
    instance = instance_words(offer, offer.devices if count is None else count)
    return instance if named else f"{offer.provider} {instance}"


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
    parts = [
        strategy.precision,
        batch,
        recompute,
        mesh_words(strategy.mesh),
        *parallel_words(strategy),
        strategy.optimizer or "",
        *technique_words(strategy),
        mode,
    ]
    return ", ".join(part for part in parts if part)


def parallel_words(strategy: Strategy) -> list[str]:
    """'sequence parallel', 'interleaved-1f1b with 2 stages a rank': how axes of the mesh are used where not as usual."""
    mesh, parallelism = strategy.mesh, strategy.parallelism
    several = f" with {parallelism.stages_per_rank} stages a rank" if parallelism.stages_per_rank > 1 else ""
    return [
        words
        for words, applies in (
            (f"{parallelism.shard} sharded", mesh.dp_shard > 1 and parallelism.shard != "parameters"),
            ("sequence parallel", mesh.tp > 1 and parallelism.sequence_parallel),
            ("loss parallel", mesh.tp > 1 and parallelism.loss_parallel),
            (f"context by {parallelism.context}", mesh.cp > 1 and parallelism.context != "gather"),
            (f"{parallelism.pipeline_schedule}{several}", mesh.pp > 1 and (several or parallelism.pipeline_schedule != "1f1b")),
            ("gradients reduced in bf16", parallelism.compress_gradients),
        )
        if applies
    ]


def technique_words(strategy: Strategy) -> list[str]:
    """'foreach kernels', 'offload of the optimizer', 'qlora of rank 16': what is not as usual."""
    return [
        words
        for words, applies in (
            (f"{strategy.optimizer_kernels} kernels", strategy.optimizer_kernels),
            ("optimizer in backward", strategy.optimizer_in_backward),
            ("gradients kept", strategy.keep_gradients),
            (
                f"offload of {'the optimizer' if strategy.offload == 'optimizer' else strategy.offload}",
                strategy.offload != "none",
            ),
            (f"{strategy.adapter} of rank {strategy.adapter_rank}", strategy.adapter != "none"),
            ("compiled", strategy.compile),
            ("channels last", strategy.channels_last),
        )
        if applies
    ]
