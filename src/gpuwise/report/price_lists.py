"""What became of a refresh, prices that moved, and rows that were left out, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from gpuwise.refresh.outcome import FAILED, KEPT_LAST, TAKEN, UNCHANGED, PriceMove, RefreshOutcome
from gpuwise.report.parts import UNKNOWN, columns
from gpuwise.units import format_usd

if TYPE_CHECKING:
    from gpuwise.results.listings import QuarantinedRow

MOST_MOVES = 40
_WORDS = {TAKEN: "taken", UNCHANGED: "unchanged", KEPT_LAST: "the last one stays", FAILED: "not fetched"}
_OUTCOME_COLUMNS = ("list", "now", "prices of", "rows", "quarantined", "source")
_MOVE_COLUMNS = ("offer", "region", "terms", "$/h before", "$/h now", "change")
_QUARANTINE_COLUMNS = ("list", "row", "rows", "why it is not taken", "of")


def refresh_report(outcomes: Sequence[RefreshOutcome], *, with_moves: bool = False) -> Group:
    """A line a list; below, why lists were not taken. with_moves: the prices that moved, too."""
    cells = [
        [
            each.provider,
            _WORDS[each.state],
            each.as_of or "as shipped",
            f"{each.rows:,}" if each.state != FAILED else UNKNOWN,
            f"{each.quarantined:,}" if each.state != FAILED else UNKNOWN,
            each.source,
        ]
        for each in outcomes
    ]
    narrow = (("list",), ("now", "prices of"), ("rows", "quarantined"), ("source",))
    lines: list[RenderableType] = [
        columns(_OUTCOME_COLUMNS, cells, right=("rows", "quarantined"), wide="source", narrow=narrow)
    ]
    for each in outcomes:
        label = "taken in spite of" if each.overridden else _WORDS[each.state]
        lines += [Text(f"{each.provider}: {label}: {why}") for why in each.why]
        lines += [Text(f"{each.provider}: {remark}.", style="dim") for remark in each.remarks]
    if any(each.state == KEPT_LAST for each in outcomes):
        lines.append(Text("--accept takes a list that fails these gates; rows stay quarantined.", style="dim"))
    if any(each.quarantined for each in outcomes if each.state in (TAKEN, UNCHANGED)):
        lines.append(Text("`gpuwise offers --quarantined` lists the rows that were not taken, with the reason.", style="dim"))
    if with_moves:
        lines += [Text(""), moves_report([move for each in outcomes for move in each.moves])]
    return Group(*lines)


def moves_report(moves: Sequence[PriceMove]) -> Group:
    """Prices that differ, the largest changes first; those that came or went are counted."""
    moved = [move for move in moves if move.change is not None]
    came = sum(move.before_usd is None for move in moves)
    went = sum(move.after_usd is None for move in moves)
    foot = [f"{len(moved):,} prices moved, {came:,} are new, {went:,} are no longer listed."]
    if not moved:
        return Group(Text(foot[0]))
    cells = [
        [
            f"{move.provider} {move.instance}",
            move.region,
            move.terms,
            format_usd(move.before_usd or 0.0),
            format_usd(move.after_usd or 0.0),
            f"{move.change or 0.0:+.0%}",
        ]
        for move in moved[:MOST_MOVES]
    ]
    if len(moved) > MOST_MOVES:
        foot.append(f"{len(moved) - MOST_MOVES:,} smaller moves are not shown; --json has all.")
    narrow = (("offer",), ("region", "terms"), ("$/h before", "$/h now"), ("change",))
    table = columns(_MOVE_COLUMNS, cells, right=("$/h before", "$/h now", "change"), narrow=narrow)
    return Group(table, Text(""), *(Text(line, style="dim") for line in foot))


def quarantine_report(rows: Sequence[QuarantinedRow]) -> Group:
    """A line a kind of row and reason."""
    if not rows:
        return Group(Text("no row of a fetched price list is quarantined."))
    cells = [[row.provider, row.row, f"{row.rows:,}", row.why, row.as_of] for row in rows]
    narrow = (("list", "row"), ("rows", "of"), ("why it is not taken",))
    table = columns(_QUARANTINE_COLUMNS, cells, right=("rows",), wide="why it is not taken", narrow=narrow)
    total = sum(row.rows for row in rows)
    return Group(table, Text(""), Text(f"{total:,} rows of fetched lists that no plan uses.", style="dim"))
