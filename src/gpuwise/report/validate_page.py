"""A Validation as a page that stands alone: Markdown, or HTML without anything from elsewhere."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwise.errors import InputError
from gpuwise.report.html import bullets, page, table
from gpuwise.report.parts import number, rate
from gpuwise.report.picture import save_text
from gpuwise.report.validate import HEADERS, RANK_HEADERS, RIGHT, ending, memory_rows, overall, rank_rows, remarks, row
from gpuwise.strategy import Strategy

if TYPE_CHECKING:
    from gpuwise.results.validation import Trial, Validation

SUFFIXES = (".md", ".html")


def check_page(path: str | os.PathLike[str]) -> Path:
    """Raises InputError for another ending than those of SUFFIXES, and for a folder that is not there."""
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise InputError(
            f"a report is a .md or .html file, got {str(path)!r}.",
            [f"--report {target.stem or 'report'}.md", f"--report {target.stem or 'report'}.html"],
        )
    if not target.parent.is_dir():
        raise InputError(f"there is no folder {target.parent} to write {target.name} to.", ["make it first"])
    return target


def save_page(result: Validation, path: str | os.PathLike[str]) -> Path:
    """Writes the page; it is whole or is not there. Raises InputError where it cannot be written."""
    target = check_page(path)
    text = markdown(result) if target.suffix.lower() == ".md" else html(result)
    return save_text(text, target)


def markdown(result: Validation) -> str:
    """Headings, tables and lists."""
    lines = [f"# {_TITLE}", "", *_opening(result), "", *_table(HEADERS, [row(trial) for trial in result.trials], RIGHT), ""]
    lines += [*_table(("over all", ""), overall(result)), ""]
    for trial in result.trials:
        lines += [f"## {_cell(trial.job)}", "", *[f"- {_cell(sentence)}" for sentence in _facts(trial)], ""]
        if rows := _memory(trial):
            lines += [*_table(_MEMORY, rows, _MEMORY[1:]), ""]
        if rows := _ranks(trial):
            lines += [*_table(RANK_HEADERS, rows, RANK_HEADERS), ""]
    if sentence := remarks(result):
        lines += ["## Notes", "", *[f"- {_cell(line)}" for line in sentence], ""]
    return "\n".join(lines)


def html(result: Validation) -> str:
    """The same, as one file."""
    body = [
        f"<h1>{_TITLE}</h1>",
        *[f"<p>{escape(line)}</p>" for line in _opening(result)],
        table(HEADERS, [row(trial) for trial in result.trials], right=RIGHT),
        table(("over all", ""), overall(result)),
    ]
    for trial in result.trials:
        body += [f"<h2>{escape(trial.job)}</h2>", bullets(_facts(trial))]
        if rows := _memory(trial):
            body.append(table(_MEMORY, rows, right=_MEMORY[1:]))
        if rows := _ranks(trial):
            body.append(table(RANK_HEADERS, rows, right=RANK_HEADERS))
    if sentences := remarks(result):
        body += ["<h2>Notes</h2>", bullets(sentences)]
    return page(_TITLE, body)


_TITLE = "Forecasts held against this machine"
_MEMORY = ("memory at the peak", "measured", "forecast")


def _opening(result: Validation) -> list[str]:
    versions = sorted({f"PyTorch {t.torch_version}, threads: {t.threads}" for t in result.trials if t.torch_version})
    return [
        f"{result.machine} ({result.chip}), {result.taken}. {'; '.join(versions)}. Written by gpuwise validate in "
        f"{result.seconds:.0f} s. An error is of the forecast, as a share of what was measured."
    ]


def _facts(trial: Trial) -> list[str]:
    """The details that have no room in the table of all jobs."""
    facts = [] if trial.measured is not None else [ending(trial)]
    if trial.forecast is None:
        return facts
    strategy = Strategy.from_dict(trial.forecast["strategy"])
    sizes = "".join(f", {name.replace('_', ' ')} {value:,}" for name, value in trial.sizes.items())
    mesh = f", {strategy.mesh}" if strategy.mesh.devices > 1 else ""
    batches = f"micro-batch {strategy.micro_batch:,}, accumulation {strategy.accumulation:,}"
    facts.append(f"{strategy.precision}, {batches}{mesh}{sizes}")
    if trial.measured is not None and trial.throughput is not None:
        throughput = trial.forecast["throughput"]
        facts.append(
            f"throughput {rate(trial.throughput, throughput['unit'])} measured over {trial.measured.step.rounds:,} "
            f"steps, {number(throughput['value'])} forecast"
        )
        if trial.measured.shares:
            facts.append(f"the measured step spends its time on {_shares(trial.measured.shares)}")
    facts.append(f"the forecast is bound by {_shares(trial.forecast['bound'])}")
    return [*facts, *trial.forecast["assumptions"], *trial.forecast["warnings"]]


def _shares(parts: Mapping[str, float]) -> str:
    ranked = sorted(((name, share) for name, share in parts.items() if share >= 0.005), key=lambda part: -part[1])
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in ranked) or "nothing that was told"


def _memory(trial: Trial) -> list[list[str]]:
    return memory_rows(trial) if trial.measured is not None and trial.forecast is not None else []


def _ranks(trial: Trial) -> list[list[str]]:
    return [] if trial.measured is None else rank_rows(trial.measured.ranks)


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> list[str]:
    rule = ["---:" if header in right else "---" for header in headers]
    return [f"| {' | '.join(map(_cell, cells))} |" for cells in (headers, rule, *rows)]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
