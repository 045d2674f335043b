"""The command line itself: help, failures, exit codes, completion. What verbs answer is in test_cli_verbs.py."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from collections import Counter

import pytest
from click import Option
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from gpuwise import __version__, api
from gpuwise.cli.main import VERBS, main
from gpuwise.cli.sections import SECTIONS
from gpuwise.errors import DoesNotFitError
from gpuwise.step_settings import settings_of
from gpuwise.trace.presets.table import PRESETS


def run(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


def process(*arguments: str, **options):
    command = [sys.executable, "-m", "gpuwise", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_help_names_every_verb(arguments: tuple[str, ...]):
    result = run(*arguments)
    assert result.exit_code == 0
    for name in VERBS:
        assert f"\n  {name} " in result.stdout


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_has_help_and_is_named_as_its_file(name: str):
    result = run(name, "--help")
    assert result.exit_code == 0
    assert f"gpuwise {name}" in result.stdout or f"main {name}" in result.stdout
    command = main.get_command(None, name)
    assert command.name == name
    has_json = any("--json" in option.opts for option in command.params)
    assert has_json == (name not in {"record", "completion"})


@pytest.mark.parametrize("name", ["forecast", "plan", "serve-plan", "train"])
def test_help_has_every_flag_once_and_settings_by_section(name: str):
    parts = re.split(r"^(\S.*):$", run(name, "--help").stdout, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert next(iter(sections)) == "Options"
    assert list(sections)[-1] == "Presets"
    shown = {title: re.findall(r"^  (?:-\w, )?--([\w-]+)", text, flags=re.MULTILINE) for title, text in sections.items()}
    options = [option for option in main.get_command(None, name).params if isinstance(option, Option)]
    flags = [option.opts[-1].removeprefix("--") for option in options]
    assert Counter(flag for each in shown.values() for flag in each) == Counter([*flags, "help"])
    for part, title in SECTIONS.items():
        names = {setting.replace("_", "-") for setting in settings_of(part)}
        assert not set(shown["Options"]) & names or title not in shown
        assert set(shown.get(title, ())) <= names


@pytest.mark.parametrize("name", ["forecast", "fit", "compare", "plan", "train"])
def test_help_of_a_verb_with_a_job_lists_the_presets(name: str):
    assert set(PRESETS) <= {word.strip(",") for word in run(name, "--help").stdout.split()}


def test_help_loads_no_verb_and_nothing_heavy():
    code = (
        "import sys\nfrom gpuwise.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print([m for m in sorted(sys.modules) if m in ('numpy', 'rich', 'torch') or m.startswith('gpuwise.cli.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1]
    assert loaded == "['gpuwise.cli.failure', 'gpuwise.cli.main', 'gpuwise.cli.stdout', 'gpuwise.cli.streams']"


def test_version():
    assert run("--version").stdout.strip() == f"gpuwise, version {__version__}"


def test_an_unknown_command_gets_the_nearest():
    result = run("frecast")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "unknown command 'frecast'" in result.stderr
    assert "try: nearest: forecast" in result.stderr


def test_a_usage_error_names_the_help():
    result = run("forecast", "resnet50")
    assert result.exit_code == 2
    assert "Missing option '--on'" in result.stderr
    assert "forecast --help" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["frecast", "--json"], "unknown-name"),
        (["forecast", "resnet50", "--json"], "usage"),
        (["plan", "gpt2", "--budget", "lots", "--json"], "bad-input"),
    ],
)
def test_errors_under_json_are_one_object_on_stdout(arguments: list[str], code: str):
    result = run(*arguments)
    assert result.exit_code == 2
    error = json.loads(result.stdout)["error"]
    assert error["code"] == code
    assert error["message"] in result.stderr
    assert error["ways_out"]


def test_the_exit_code_is_the_errors_own(monkeypatch: pytest.MonkeyPatch):
    class OddError(DoesNotFitError):
        exit_code = 7

    def fail(*_: object, **__: object) -> None:
        raise OddError("too big.", ["smaller"])

    monkeypatch.setattr(api, "doctor", fail)
    result = run("doctor")
    assert (result.exit_code, result.stdout, result.stderr) == (7, "", "error: too big.\n  try: smaller\n")


def test_an_unexpected_exception_is_one_line_and_says_how_to_see_more(monkeypatch: pytest.MonkeyPatch):
    def fail() -> None:
        raise ZeroDivisionError("a\nb")

    monkeypatch.setattr(api, "doctor", fail)
    monkeypatch.delenv("GPUWISE_DEBUG", raising=False)
    result = run("doctor", "--json")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ZeroDivisionError: a b\n")
    assert "GPUWISE_DEBUG=1" in result.stderr
    assert "Traceback" not in result.stderr
    assert json.loads(result.stdout)["error"]["code"] == "unexpected"
    monkeypatch.setenv("GPUWISE_DEBUG", "1")
    assert isinstance(run("doctor").exception, ZeroDivisionError)


@pytest.mark.parametrize("as_json", [True, False])
def test_ctrl_c_exits_130_without_a_traceback(monkeypatch: pytest.MonkeyPatch, as_json: bool):
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "doctor", interrupted)
    result = run("doctor", *(["--json"] if as_json else []))
    assert result.exit_code == 130
    assert "interrupted." in result.stderr
    assert "Traceback" not in result.stderr
    if as_json:
        assert json.loads(result.stdout)["error"]["code"] == "interrupted"
    else:
        assert result.stdout == ""


def test_warnings_go_to_stderr_in_one_line(monkeypatch: pytest.MonkeyPatch):
    def warns(*_: object) -> tuple[()]:
        warnings.warn("old file", stacklevel=1)
        return ()

    monkeypatch.setattr(api, "chips", warns)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        result = run("chips", "--json")
    assert result.stderr == "warning: old file\n"
    assert json.loads(result.stdout) == []


def test_a_reader_that_leaves_is_no_failure_worth_words():
    pipe_read, pipe_write = os.pipe()
    os.close(pipe_read)
    with os.fdopen(pipe_write, "w") as closed:
        command = [sys.executable, "-m", "gpuwise", "chips"]
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, check=False)
    assert done.stderr == b""
    assert done.returncode == 1


def test_piped_reports_carry_no_ansi_codes():
    done = process("chips", "t4", env={**os.environ, "FORCE_COLOR": ""})
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert all(line == line.rstrip() for line in done.stdout.splitlines())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str):
    result = run("completion", shell)
    assert result.exit_code == 0
    assert "_GPUWISE_COMPLETE" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "incomplete", "expected"),
    [
        ([], "fo", {"forecast"}),
        (["forecast"], "resnet", {"resnet50"}),
        (["forecast", "resnet50", "--on"], "rtx-409", {"rtx-4090", "rtx-4090-d", "rtx-4090-laptop"}),
        (["compare", "resnet50", "--on"], "t4,rtx-409", {"t4,rtx-4090", "t4,rtx-4090-d", "t4,rtx-4090-laptop"}),
        (["forecast", "resnet50", "--on"], "he", {"here"}),
        (["forecast", "resnet50"], "--micro", {"--micro-batch"}),
        (["train", "gpt2", "--precision"], "amp-b", {"amp-bf16"}),
    ],
)
def test_completion_of_commands_presets_and_chips(arguments: list[str], incomplete: str, expected: set[str]):
    result = ShellComplete(main, {}, "gpuwise", "_GPUWISE_COMPLETE").get_completions(arguments, incomplete)
    assert {item.value for item in result} == expected


def test_completion_of_a_job_that_is_no_preset_offers_files():
    result = ShellComplete(main, {}, "gpuwise", "_GPUWISE_COMPLETE").get_completions(["train"], "examples/di")
    assert [item.type for item in result] == ["file"]
