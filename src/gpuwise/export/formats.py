"""Texts of JSON, YAML and Python literals into nested keys, and back. Nothing of a text is executed or imported."""

from __future__ import annotations

import ast
import json
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import yaml

from gpuwise.export.cells import Keys
from gpuwise.json_types import Json, JsonObject
from gpuwise.plain_files import parse_json

MOST_LEVELS = 20  # of nested keys; a peer's file has four
NOT_LITERAL = "not literal: "  # before the name of a keyword whose value is no literal


def flat(nested: JsonObject) -> dict[str, Json]:
    """Dotted paths of nested keys. An empty mapping gives none. Raises ValueError for keys that are no words."""
    keys: dict[str, Json] = {}
    waiting: list[tuple[str, int, JsonObject]] = [("", 0, nested)]
    while waiting:
        prefix, level, part = waiting.pop(0)
        if level > MOST_LEVELS:
            raise ValueError("nested too deeply")
        for name, value in part.items():
            if not isinstance(name, str):
                raise ValueError(f"a key that is no word: {name!r:.40}")
            if isinstance(value, Mapping):
                waiting.append((f"{prefix}{name}.", level + 1, value))
            else:
                keys[prefix + name] = value
    return keys


def nested(keys: Keys) -> dict[str, Json]:
    """The inverse of flat."""
    tree: dict[str, Json] = {}
    for path, value in keys.items():
        *outer, last = path.split(".")
        branch = tree
        for name in outer:
            below = branch.setdefault(name, {})
            assert isinstance(below, dict)
            branch = below
        branch[last] = value
    return tree


def json_of(text: str) -> JsonObject:
    """The object of a JSON text. Raises ValueError, also for a key that stands twice."""
    data = parse_json(text)
    json.loads(text, object_pairs_hook=_once)
    return _mapping(data)


def yaml_of(text: str) -> JsonObject:
    """The mapping of a YAML text. Raises ValueError, also for aliases, tags and a key that stands twice."""
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise ValueError("an alias of YAML (*name)")
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        _check_once(tree)
        data = yaml.safe_load(text)
        json.dumps(data, allow_nan=False)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except TypeError as error:
        raise ValueError(f"a value that JSON has not: {error}") from None
    return _mapping(data)


def call_of(text: str, names: tuple[str, ...]) -> JsonObject:
    """The keywords of the one call in a Python text whose function ends in one of `names`, as literals.

    A call within it, such as FSDPStrategy(cpu_offload=True), gives a mapping whose `class` is its name. What is no literal is
    None under `not literal: NAME`. The text is parsed, not executed. Raises ValueError.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except SyntaxError as error:
        raise ValueError(f"no Python: {error.msg} in line {error.lineno}") from None
    except (RecursionError, MemoryError):
        raise ValueError("nested too deeply") from None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _name(node.func).endswith(names)]
    if len(calls) != 1:
        raise ValueError(f"{len(calls)} calls of {names[0].lstrip('.')}, where one is read")
    return _call(calls[0], level=0)


def _call(call: ast.Call, level: int) -> dict[str, Json]:
    if level > MOST_LEVELS:
        raise ValueError("nested too deeply")
    if call.args:
        raise ValueError(f"an argument of {_name(call.func)} without its name")
    values: dict[str, Json] = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            values[f"{NOT_LITERAL}**{ast.unparse(keyword.value)[:40]}"] = None
        elif keyword.arg in values:
            raise ValueError(f"the key {keyword.arg} stands twice")
        elif isinstance(keyword.value, ast.Call):
            values[keyword.arg] = {"class": _name(keyword.value.func).lstrip("."), **_call(keyword.value, level + 1)}
        else:
            try:
                literal = ast.literal_eval(keyword.value)
                values[keyword.arg] = json.loads(json.dumps(literal, allow_nan=False))
            except (ValueError, TypeError, RecursionError, MemoryError):
                values[f"{NOT_LITERAL}{keyword.arg}"] = None
    return values


def _name(function: ast.expr) -> str:
    """'.Trainer' of Trainer(...) and of lightning.Trainer(...), '.Trainer.Config' of Trainer.Config(...)."""
    if isinstance(function, ast.Attribute):
        return f"{_name(function.value)}.{function.attr}"
    return f".{function.id}" if isinstance(function, ast.Name) else "."


def call_text(function: str, tree: JsonObject, classes: Mapping[str, str], *, level: int = 1) -> str:
    """A Python call with these keywords; a mapping is a call of the class that its `class` names, or of that in `classes`."""
    indent = "    " * level
    lines = []
    for name, value in tree.items():
        if isinstance(value, Mapping):
            inner = {key: item for key, item in value.items() if key != "class"}
            text = call_text(str(value.get("class") or classes.get(name, "dict")), inner, classes, level=level + 1)
        else:
            text = str(value) if isinstance(value, Name) else repr(value)
        lines.append(f"{indent}    {name}={text},\n")
    return f"{function}(\n{''.join(lines)}{indent})" if lines else f"{function}()"


class Name(str):
    """A value that stands in a Python text as a name, not as a literal."""

    __slots__ = ()


def _once(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    _check_names([name for name, _ in pairs])
    return dict(pairs)


def _check_once(tree: object) -> None:
    for node in _nodes(tree):
        _check_names([str(key.value) for key, _ in node.value])


def _check_names(names: Sequence[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"the key {twice[0]} stands twice")


def _nodes(tree: object) -> Iterator[yaml.MappingNode]:
    """The mappings of a YAML tree."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, yaml.MappingNode):
            yield node
            waiting += [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            waiting += list(node.value)


def _mapping(data: object) -> JsonObject:
    if not isinstance(data, Mapping):
        raise ValueError(f"a {type(data).__name__}, where keys with values are read")
    return data
