"""Kinds of notes: made in one place, documented, in JSON with their kind, and never told apart by their sentences."""

from __future__ import annotations

import ast
import inspect
import json
import re
import typing
from pathlib import Path

import click
import pytest

import gpuwise
from gpuwise.cli.main import main
from gpuwise.errors import GpuwiseError
from gpuwise.notes import KINDS, Note, all_kinds, of_sentence
from gpuwise.notes.job import assumed_sequence_length, convolution_workspaces
from gpuwise.trace.header import Header

ROOT = Path(gpuwise.__file__).parent
DOCS = ROOT.parents[1] / "docs" / "notes.md"
EXAMPLES = {int: 2, float: 1.5, str: "x", bool: True}


def example(name: str) -> Note:
    make = all_kinds()[name].make
    hints = typing.get_type_hints(inspect.unwrap(make))
    parameters = inspect.signature(make).parameters.values()
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters), name
    figures = {}
    for parameter in parameters:
        options = [kind for kind in typing.get_args(hints[parameter.name]) or [hints[parameter.name]] if kind in EXAMPLES]
        figures[parameter.name] = EXAMPLES[options[0]]
    return make(**figures)


@pytest.mark.parametrize("name", sorted(all_kinds()))
def test_a_kind_makes_a_note_that_reads_back(name: str):
    note = example(name)
    assert (note.kind, note.flag) == (name, KINDS[name].flag)
    assert note.text
    assert str(note) == note.text
    assert set(note.to_dict()) == {"kind", "text", "figures", "flag"}
    assert Note.from_dict(json.loads(json.dumps(note.to_dict()))) == note
    assert KINDS[name].meaning.endswith(".")


def test_each_flag_exists_on_the_command_line():
    context = click.Context(main)
    verbs = [verb for name in main.list_commands(context) if (verb := main.get_command(context, name))]
    flags = {flag for verb in verbs for parameter in verb.params for flag in parameter.opts}
    assert {kind.flag for kind in all_kinds().values() if kind.flag} <= flags


def test_a_flag_that_a_sentence_names_as_the_one_that_changes_it_is_the_kinds():
    for name in all_kinds():
        note = example(name)
        if result := re.search(r"(--[a-z-]+) changes (?:it|both)$", note.text):
            assert note.flag == result[1]


@pytest.mark.skipif(not DOCS.exists(), reason="not run from the source tree")
def test_each_kind_has_its_row_in_the_docs():
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (?:`(--[a-z-]+)`)? ?\| (.+) \|$", DOCS.read_text(), re.MULTILINE)
    kinds = all_kinds().values()
    assert rows == [(kind.name, kind.flag or "", kind.meaning) for kind in sorted(kinds, key=lambda kind: kind.name)]


def test_a_sentence_of_an_older_file_keeps_its_flag():
    old = Note.from_dict("assumed sequence length 4,096; --seq-len changes it")
    assert (old.kind, old.flag) == ("older", "--seq-len")
    assert Note.from_dict("a plain sentence").flag is None
    assert of_sentence("one --flag inside; and more", "older").flag is None


def test_a_sentence_without_figures_has_its_kind_again():
    assert Note.from_dict(convolution_workspaces().text) == convolution_workspaces()


@pytest.mark.parametrize(
    "data",
    [None, 3, [], {"kind": 1, "text": "x"}, {"kind": "x"}, {"kind": "x", "text": "x", "figures": {"a": []}}, {"more": 1}],
)
def test_what_is_no_note_is_refused(data: object):
    with pytest.raises(ValueError, match="note"):
        Note.from_dict(data)


def test_a_header_keeps_its_notes(trace_header: Header):
    assert Header.from_dict(json.loads(json.dumps(trace_header.to_dict()))) == trace_header
    older = {**trace_header.to_dict(), "assumptions": list(trace_header.assumptions)}
    assert Header.from_dict(older).assumptions == trace_header.assumptions


@pytest.fixture
def trace_header() -> Header:
    from gpuwise.strategy import Strategy

    notes = (assumed_sequence_length(length=4096), convolution_workspaces())
    return Header("net", "f" * 16, {"micro_batch": 2}, Strategy(), 10, 10, assumption_notes=notes)


def test_json_has_notes_beside_sentences():
    forecast = gpuwise.forecast("gpt2", on="rtx-4090").to_dict()
    assert [note["text"] for note in forecast["assumption_notes"]] == forecast["assumptions"]
    kinds = {note["kind"]: note for note in forecast["assumption_notes"]}
    assert kinds["assumed-sequence-length"]["figures"] == {"length": 1024}
    assert kinds["assumed-sequence-length"]["flag"] == "--seq-len"
    assert set(kinds) <= set(all_kinds())
    result = gpuwise.plan("gpt2", samples="10k", on="rtx-4090,t4").to_dict()
    best = result["plans"][0]
    assert [note["text"] for note in best["reason_notes"]] == best["reasons"]
    rejected = {note["text"]: note["count"] for note in result["rejection_notes"]}
    assert rejected == result["rejected"]
    json.dumps(result)


# The properties and attributes that hold sentences, and what asks a text for what is in it.
SENTENCES = ("assumptions", "reasons", "warnings", "what", "text")
ASKS = ("startswith", "endswith", "find", "index", "count", "removeprefix", "splitlines")
ASKS += ("partition", "rpartition", "split", "rsplit")
SEARCHES = ("search", "match", "fullmatch", "findall", "finditer", "split")


def asked_sentences(tree: ast.AST) -> list[int]:
    """Lines on which a sentence is asked for what is in it."""
    sentences: set[str] = set()  # names that a loop over sentences gives to each
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.For | ast.comprehension)
            and is_sentence(node.iter, set())
            and isinstance(node.target, ast.Name)
        ):
            sentences.add(node.target.id)
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
            requests = [
                right for op, right in zip(node.ops, node.comparators, strict=True) if isinstance(op, ast.In | ast.NotIn)
            ]
            lines += [node.lineno for right in requests if is_sentence(right, sentences)]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            searched = node.args[1:2] if node.func.attr in SEARCHES and ast.unparse(node.func.value) == "re" else []
            searched += [node.func.value] if node.func.attr in ASKS else []
            lines += [node.lineno for text in searched if is_sentence(text, sentences)]
    return lines


def is_sentence(node: ast.AST, names: set[str]) -> bool:
    """Whether an expression is a sentence, or several: an attribute that holds them, or what a loop over them names."""
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("lower", "strip", "rstrip"):
        return is_sentence(node.func.value, names)
    if isinstance(node, ast.Subscript):
        return is_sentence(node.value, names)
    return isinstance(node, ast.Attribute) and node.attr in SENTENCES


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_decides_by_what_is_in_a_sentence(path: Path):
    assert not asked_sentences(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "code",
    [
        "kept = [line for line in header.assumptions if '--samples' not in line]",
        "for reason in plan.reasons:\n    if reason.startswith('stale'): pass",
        "if 'does not fit' in error.what: pass",
        "why = note.text.partition(': ')[2]",
        "re.search('fits', result.warnings[0])",
    ],
)
def test_the_check_sees_what_it_is_for(code: str):
    assert asked_sentences(ast.parse(code))


def test_errors_carry_their_cause_beside_the_sentence():
    assert GpuwiseError("it failed (net.py:3).").position == ""
