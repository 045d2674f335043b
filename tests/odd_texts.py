"""Texts that a shell, a parser of YAML or a program could read as its own: for tests of quoting."""

from __future__ import annotations

from hypothesis import strategies as st

_SHELL = ("'", '"', " ", "\n", "\t", "$(touch hacked)", "`touch hacked`", ";touch hacked;", "${HOME}", "&", "|", "*", "~", "\\")
_YAML = (": ", "no", "1e3", "&a", "*a", "{", "]", "%", "@", ">", "---\n", "\u2028", "\x85", "\x07")
_OTHERS = ("#", "!", "-", "=", "é")
_LONGEST_NAME = 60  # bytes of a file's name, with which paths stay far below the system's limit

TEXTS = st.lists(st.one_of(st.sampled_from((*_SHELL, *_YAML, *_OTHERS)), st.sampled_from("ab1._")), min_size=1, max_size=8).map(
    "".join
)
FILE_NAMES = TEXTS.filter(lambda text: text.strip() and text not in (".", "..") and len(text.encode()) < _LONGEST_NAME)
# Of environment variables: any text without a NUL.
VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20) | TEXTS
