"""Text for a POSIX shell. Every value passes through shlex, so that no character of it is read by the shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from gpuwise.errors import InputError


def joined(argv: Iterable[str]) -> str:
    """A command of quoted words."""
    return shlex.join(argv)


def exports(environment: Mapping[str, str]) -> list[str]:
    """Lines that set variables."""
    return [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]


def script(*parts: str | Sequence[str], shell: str = "/bin/bash") -> str:
    """A script of lines."""
    lines = [f"#!{shell}"]
    for part in parts:
        lines += [part] if isinstance(part, str) else part
    return "\n".join(lines) + "\n"


def parse_variables(pairs: Iterable[str]) -> dict[str, str]:
    """NAME=VALUE pairs. Raises InputError for a name that no shell takes, and a value with a NUL."""
    variables = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or "\0" in value:
            raise InputError(
                f"--env {pair!r} is no NAME=VALUE.", ["letters, digits and underscores make a name: --env HF_HOME=/data"]
            )
        variables[name] = value
    return variables


def runs(command: str) -> list[str]:
    """Lines that run a command and pass on signals to it; its exit code is $code.

    A shell alone would end by a signal, or, as the first process of a container, ignore it.
    """
    return [
        f"{command} &",
        "child=$!",
        """trap 'kill -TERM "$child"' TERM INT HUP""",
        """trap 'kill -USR1 "$child"' USR1""",
        'wait "$child"',
        'while kill -0 "$child" 2>/dev/null; do wait "$child"; done',
        'wait "$child"',
        "code=$?",
    ]


def asks_state(run_folder: str) -> str:
    """A line after the training: $state is the word of RUN/state.json.

    Launchers do not pass on the exit code of a rank: torchrun turns 130 into 1.
    """
    return f"state=$(python -m gpuwise state {shlex.quote(run_folder)})"


def ends_as_state() -> list[str]:
    """Lines that end with 0 when all is trained, 130 when the run can go on, else as the launcher ended."""
    return [
        'case "$state" in',
        "  done) exit 0 ;;",
        "  interrupted) exit 130 ;;",
        '  *) if [ "$code" -ne 0 ]; then exit "$code"; else exit 1; fi ;;',
        "esac",
    ]
