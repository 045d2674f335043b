"""How good the plan is that forecasts rank first, on published groups of measured plans of one model.

    python -m benchmarks.search_regret --reference FOLDER --cache FOLDER [--group TEXT] [--plans] [--write]

A group is one model on as many GPUs with the same global batch, under several meshes and micro-batches
(VIA-Research/vTrain, bigscience-workshop/bigscience). Regret: how much longer the plan that the forecast ranks first took
than the best measured one. Beside it, the regret of Calculon where its forecasts are known, what a plan taken by chance
would have cost, the rank correlation of forecast and measured times (Spearman), and how far rows are apart that should not
be (benchmarks.support.regret). Nothing is fitted here. Groups of one machine are not measured but composed
(benchmarks.support.composed_steps), and the host's figures behind their forecasts were fitted on models that are not kept
out: they are apart. --write changes docs/search.md. Recordings are made into --cache the first time, which needs PyTorch.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from benchmarks.megatron import DOCS
from benchmarks.support.accuracy_tables import table
from benchmarks.support.megatron_cases import megatron_cases
from benchmarks.support.megatron_rows import FITTED, rows
from benchmarks.support.regret import GROUP, explained, regrets, summary, with_batch

GROUPS = (FITTED, "several machines", "bigscience")
HEAD = ("plans", "regret", "Calculon", "by chance", "rank correlation", "spread", "regret of spread")
BEGIN, END = "<!-- regret -->\n", "<!-- end of regret -->\n"


def cells(of_group: pd.Series) -> list[str]:
    """The figures of one group, as HEAD names them."""
    shares = (of_group.regret, of_group.peer, of_group.by_chance)
    spread = (of_group.spread, of_group.of_spread)
    as_text = [["–" if pd.isna(share) else f"{share:.1%}" for share in part] for part in (shares, spread)]
    return [str(of_group.plans), *as_text[0], f"{of_group.correlation:.2f}", *as_text[1]]


def by_group(groups: pd.DataFrame, *columns: str) -> str:
    """A line for each group. columns: what names it."""
    lines = [[*(str(of_group[name]) for name in columns), *cells(of_group)] for _, of_group in groups.iterrows()]
    return table([*(name.replace("_", " ") for name in columns), *HEAD], lines, words=len(columns))


def lines(groups: pd.DataFrame) -> str:
    """Kinds of groups, a line each."""
    result = []
    for group, part in groups[groups.group != FITTED].groupby("group"):
        result.append(f"- {group}: {summary(part)}")
    measured, composed = groups[groups.group != FITTED], groups[groups.group == FITTED]
    result.append(f"- both: {summary(measured)}; at most {explained(measured):.0%} of the regret is that of the spread")
    for name, out in (("kept out", True), ("seen", False)):
        part = composed[composed.kept_out == out]
        peer = f"; Calculon mean {part.peer.mean():.1%}, worst {part.peer.max():.1%}" if len(part) else ""
        result.append(f"- {FITTED}, composed, {name}: {summary(part)}{peer}")
    return "\n".join(result)


def write(text: str) -> None:
    """Puts the text between the marks of docs/search.md."""
    page = DOCS / "search.md"
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{text}\n\n{END}{rest.partition(END)[2]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--group", default="", help="only groups whose name holds this text")
    parser.add_argument("--plans", action="store_true", help="print every plan")
    parser.add_argument("--write", action="store_true", help="change docs/search.md in place")
    options = parser.parse_args()
    if options.write and options.group:
        parser.error("--write needs all groups: leave out --group")
    chosen = [case for case in megatron_cases(options.reference) if case.group in GROUPS and options.group in case.group]
    plans = with_batch(rows(chosen, options.cache))
    groups = regrets(plans)
    if options.plans:
        print(plans.to_string(float_format=lambda x: f"{x:.3f}"))
    print(by_group(groups, *GROUP), lines(groups), sep="\n\n")
    if options.write:
        measured = groups[groups.group != FITTED]
        write(f"{by_group(measured, 'group', 'model', 'heads', 'devices', 'global_batch')}\n\n{lines(groups)}")


if __name__ == "__main__":
    main()
