"""YAML that every reader reads alike: strings that some parser takes for a number or a truth value are quoted."""

from __future__ import annotations

import re
from collections.abc import Iterable

import yaml

from gpuwise.json_types import JsonObject

# PyYAML and Go's parser disagree on y, 1e3 and 0o7: what stays bare is a word that no schema of YAML reads as something else.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9._/-]*")
_BREAKS = re.compile(r"[\r\x85\u2028\u2029]")  # line breaks to YAML that literal blocks would turn into "\n"
_NOT_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf", "infinity"}


class _Dumper(yaml.SafeDumper):
    """SafeDumper with readable scripts (literal blocks), quoted values, and sequences below their key."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    plain = _PLAIN.fullmatch(value) and value.lower() not in _NOT_WORDS
    style = "|" if "\n" in value and not _BREAKS.search(value) else "" if plain else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def yaml_text(*documents: JsonObject, comment: Iterable[str] = ()) -> str:
    """Documents as YAML, below the lines of a comment."""
    text = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)
    return "".join(f"# {' '.join(line.split())}\n" for line in comment) + str(text)
