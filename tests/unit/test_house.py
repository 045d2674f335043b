"""What keeps the source readable, counted from its syntax trees."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpuwise

ROOT = Path(gpuwise.__file__).parent
TREES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(ROOT.rglob("*.py"))}
MOST_PARAMETERS = 10
MOST_LINES = 300
MOST_ANY = 80
MOST_SKIPPED = 20
# Participles are no nouns, and a place is a device group, a path or a position: a variable has the name of the thing.
VAGUE = {"asked", "found", "given", "held", "its", "known", "made", "place", "places", "said", "told", "wanted", "wish"}


def nodes() -> Iterator[tuple[str, ast.AST]]:
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            yield path, node


def test_a_class_name_stands_once():
    homes: dict[str, list[str]] = {}
    for path, node in nodes():
        if isinstance(node, ast.ClassDef):
            homes.setdefault(node.name, []).append(path)
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_no_function_has_more_than_ten_parameters():
    over = {}
    for path, node in nodes():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            count = len(names) - (names[:1] in (["self"], ["cls"]))
            if count > MOST_PARAMETERS:
                over[f"{path}:{node.lineno}"] = count
    assert over == {}


def test_most_types_are_named():
    counts = Counter(path for path, node in nodes() if isinstance(node, ast.Name) and node.id == "Any")
    assert counts.total() <= MOST_ANY, counts.most_common(10)


def test_the_formatter_formats_everything():
    texts = [path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")]
    assert sum(len(re.findall(r"# fmt: (?:skip|off)", text)) for text in texts) <= MOST_SKIPPED


@pytest.mark.parametrize("path", TREES)
def test_a_module_is_read_in_one_sitting(path: str):
    lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
    assert lines <= MOST_LINES


def names_made(node: ast.AST) -> Iterator[str]:
    """The names of functions, variables, parameters and attributes that a node makes."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr


def test_names_are_those_of_things():
    lines: dict[str, list[str]] = {name: [] for name in VAGUE}
    for path, node in nodes():
        for name in names_made(node):
            if name.strip("_") in lines:
                lines[name.strip("_")].append(f"{path}:{getattr(node, 'lineno', 0)}")
    assert {name: where for name, where in lines.items() if where} == {}
