"""Standard output and error that are full, closed or not read, and arguments that are too long or no text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuwise.cli.main import main

LONG = "x" * 5_000
JOB = """
import torch
from gpuwise import Job
job = Job(model=lambda: torch.nn.Linear(8, 2), batch=lambda n: torch.randn(n, 8), loss=lambda m, x: m(x).square().mean())
"""


def shell(line: str, *arguments: str | bytes, **options) -> subprocess.CompletedProcess[bytes]:
    """Runs a line of sh in which $G is gpuwise and "$@" the arguments."""
    environment = {**os.environ, "G": f"{sys.executable} -m gpuwise"}
    return subprocess.run(["sh", "-c", line, "sh", *arguments], capture_output=True, check=False, env=environment, **options)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
@pytest.mark.parametrize("arguments", [("chips",), ("chips", "--json"), ("chips", "t4"), ("--help",), ("completion", "bash")])
def test_standard_output_that_is_full_is_named(arguments: tuple[str, ...]):
    done = shell('$G "$@" >/dev/full', *arguments)
    assert done.returncode == 2
    assert done.stderr.decode().startswith("error: standard output cannot be written to: No space left on device.\n")
    assert b"report it" not in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
@pytest.mark.parametrize("flag", [(), ("--json",)])
def test_an_error_keeps_its_exit_code_where_it_cannot_be_printed(flag: tuple[str, ...]):
    for line in ('$G "$@" >/dev/full', '$G "$@" 2>/dev/full', '$G "$@" >&- 2>&-'):
        done = shell(line, "forecast", "nope", "--on", "t4", *flag)
        assert done.returncode == 2, line
        assert b"Traceback" not in done.stderr


def test_closed_descriptors_are_not_taken_by_files(tmp_path: Path):
    """What is printed would land in the first file that is opened."""
    done = shell('$G "$@" <&- >&- 2>&-', "forecast", "gpt2", "--on", "t4", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert list(tmp_path.iterdir()) == []


def test_an_error_whose_reader_has_gone_is_no_traceback():
    done = shell('{ $G "$@" 2>&1; echo $? >&3; } 3>&1 | true', "chips", "nope")
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("forecast", LONG, "--on", "t4"),
        ("forecast", f"{LONG}.py:job", "--on", "t4"),
        ("forecast", f"hf:./{LONG}", "--on", "t4"),
        ("forecast", f"{LONG}.npz", "--on", "t4"),
        ("forecast", "gpt2", "--on", LONG),
        ("train", "gpt2", "--plan", LONG),
        ("plan", "gpt2", "--samples", "1k", "--on", "t4", "-o", LONG),
        ("chips", f"memory>{LONG}"),
        ("validate", LONG),
        ("forecast", "gpt2", "--on", "t4", "--micro-batch", "9" * 5_000),
        ("forecast", "gpt2", "--on", "t4", "--mesh", "dp=" + "9" * 5_000),
    ],
)
def test_an_argument_of_any_length_is_the_users_error_in_a_few_lines(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, arguments)
    assert (done.exit_code, type(done.exception)) == (2, SystemExit)
    assert done.stderr.startswith("error: ")
    assert len(done.stderr) < 1_500


@pytest.mark.slow
def test_a_job_in_a_file_whose_name_is_no_text(tmp_path: Path):
    name = b"na\xff\xe9me.py"
    try:
        (tmp_path / os.fsdecode(name)).write_text(JOB)
    except OSError:
        pytest.skip("the file system takes names of text alone")
    done = shell('$G "$@"', "forecast", name + b":job", "--on", "t4", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["job"] == "na\\udcff\\udce9me:job"
    done = shell('$G "$@"', "forecast", name + b":nope", "--on", "t4", cwd=tmp_path)
    assert (done.returncode, b"has no 'nope'" in done.stderr) == (2, True)
    done = shell('$G "$@"', "plan", name + b":job", "--samples", "1k", "--on", "t4", "-o", b"pl\xffan.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / os.fsdecode(b"pl\xffan.toml")).read_text()
