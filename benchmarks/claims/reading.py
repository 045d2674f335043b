"""Reads claims.toml: its rows become calls of gpuwise, figures of their answers, and formulas over figures above."""

from __future__ import annotations

import ast
import math
import operator
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.claims import jobs, money
from benchmarks.claims.claim import Call, Claim, Published, Row, in_unit, scale

PATH = Path(__file__).with_name("claims.toml")
_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_SIGNS = {"×": "*", "²": "**2", "³": "**3", " bytes": ""}


def read(path: Path = PATH) -> dict[str, tuple[Claim, ...]]:
    """Claims by theme."""
    themes: dict[str, tuple[Claim, ...]] = {}
    for name, table in tomllib.loads(path.read_text(encoding="utf-8")).items():
        theme = table.pop("theme", None) or next(reversed(themes))
        table["rows"] = tuple(_row(line) for block in re.split(r"\n(?! )", table["rows"]) for line in alternatives(block))
        table["published"] = tuple(_published(line) for line in table.get("published", "").splitlines())
        table["measured"] = tuple(table.get("measured", "").split())
        themes[theme] = (*themes.get(theme, ()), Claim(name, **table))
    return themes


def alternatives(block: str) -> Iterator[str]:
    """The lines of '{a;b} of {1;2}': 'a of 1', 'b of 2'."""
    groups = [group.split(";") for group in re.findall(r"\{([^{}]*;[^{}]*)\}", block)]
    for chosen in zip(*groups, strict=True) if groups else [()]:
        words = iter(chosen)
        yield from re.sub(r"\{[^{}]*;[^{}]*\}", lambda _, words=words: next(words), block).splitlines()


def evaluate(text: str, lookup: Callable[[str], Any]) -> Any:
    """The value of arithmetic on numbers, names, and attributes or items of them."""

    def value(node: ast.expr) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return lookup(node.id)
            case ast.Attribute():
                owner = value(node.value)
                return owner[node.attr] if isinstance(owner, Mapping) else getattr(owner, node.attr)
            case ast.BinOp():
                return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        raise ValueError(f"{text!r} is no arithmetic on figures")

    return value(ast.parse(text, mode="eval").body)


def _row(line: str) -> Row:
    key, what, call, figure, unit, *holds = (part.strip() for part in line.split("|"))
    low, _, high = holds[0].partition("..") if holds else ("", "", "")
    source, value = _source(call, figure)
    interval = (float(low or -math.inf) * scale(unit), float(high or math.inf) * scale(unit))
    return Row(key, what, source, value, partial(in_unit, unit), interval)


def _source(call: str, figure: str) -> tuple[Call | tuple[str, ...] | str, Callable[..., float]]:
    """What a figure is made of, and the function that makes it."""
    if call:
        source = _call(call)
        return source, partial(_figure, figure, source.job)
    if figure.startswith("="):
        names = tuple(dict.fromkeys(re.findall(r"(?<![\w.])[a-z]\w*", figure)))
        return names, lambda *values: float(evaluate(figure[1:].strip(), dict(zip(names, values, strict=True)).__getitem__))
    text = figure.strip('"')
    plain = re.sub("|".join(_SIGNS), lambda sign: _SIGNS[sign[0]], text)
    return text, lambda: float(evaluate(plain, {}.__getitem__))


def _call(text: str) -> Call:
    """'slow forecast("gpt2", on="t4")'; jobs.name() stands for a job of benchmarks.claims.jobs."""
    tree = ast.parse(text.removeprefix("slow "), mode="eval").body
    assert isinstance(tree, ast.Call)
    (first,) = tree.args
    job = jobs.named(first.func.attr) if isinstance(first, ast.Call) else ast.literal_eval(first)  # type: ignore[attr-defined]
    keywords = tuple((word.arg or "", ast.literal_eval(word.value)) for word in tree.keywords)
    return Call(ast.unparse(tree.func), job, keywords, slow=text.startswith("slow "))


def _figure(text: str, job: Any, answer: Any) -> float:
    """Of the answer to a call. Of chips it is that of the one named."""
    word, *more = text.split()
    if word in money.READERS:
        words, _, factor = " ".join(more).partition(" * ")
        return money.READERS[word](answer, *words.split()) * float(evaluate(factor or "1", {}.__getitem__))
    if isinstance(answer, tuple):
        answer = next(chip for chip in answer if chip.id == job)
    return float(evaluate(text, partial(getattr, answer)))


def _published(line: str) -> Published:
    return Published(*(part.strip() for part in line.removeprefix("?").split("|")), checked=not line.startswith("?"))
