"""Every `gpuwise` command of the README and the docs runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.one_recording import one_recording  # noqa: F401

from gpuwise.cli.failure import EXIT_INTERRUPTED
from gpuwise.cli.main import main
from gpuwise.hardware import Catalog

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(?:sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+?)(?:#[^)]*)?\)")
# About an hour, and minutes on a machine that is left alone; their parts are tested elsewhere.
EXPORTED = {"ds_config.json": "deepspeed", "accelerate.yaml": "accelerate"}
KERAS = ["plan", "keras:examples/keras_digits.py:model", "--samples", "1M", "--on", "tpu-v5e", "-o", "plan.toml"]
SLOW = ("gpuwise record", "gpuwise measure", "gpuwise validate --suite")


HALF_A_MINUTE = (
    "gpuwise plan gpt2 --tokens 2.5B --budget 60 --deadline 2d --why 4",
    "gpuwise plan gpt2 --tokens 2.5B --objective least-energy",
    "gpuwise plan examples/forest.py:job --trial-limit",
    "gpuwise plan llama3-70b",
    "gpuwise record gpt2",
    "gpuwise serve-plan llama3-70b --engine llama.cpp",
    "gpuwise serve-plan llama3-8b --engine llama.cpp",
    "gpuwise train examples/char_gpt.py:job",
    "gpuwise validate examples/char_gpt.py:job",
    "gpuwise validate gpt2",
)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands of a page keep for the next one, as on a user's machine."""
    return tmp_path_factory.mktemp("kept")


def commands() -> list[str]:
    """Lines that start with gpuwise, without the comment behind them."""
    results = []
    for page in PAGES:
        for block in BLOCK.findall(page.read_text(encoding="utf-8")):
            results += [line.split("  #")[0].strip() for line in block.splitlines() if line.startswith("gpuwise ")]
    return list(dict.fromkeys(results))


def linked() -> list[tuple[Path, str]]:
    """Files of this repository that a page refers to."""
    pages = [*PAGES, ROOT / "CONTRIBUTING.md"]
    results = [(page, target) for page in pages for target in LINK.findall(page.read_text(encoding="utf-8"))]
    return [(page, target) for page, target in results if not target.startswith(("http", "#"))]


def is_slow(command: str) -> bool:
    return command == SLOW[0] or command.startswith(SLOW[1:])


def test_the_two_commands_stand_first() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first, second = BLOCK.findall(text)[:2]
    assert "python -m pip install . && gpuwise plan llama3-8b --tokens 20B --budget 20000 --deadline 30d" in first
    assert 'python -m pip install -c constraints.txt ".[dev]" && python -m pytest' in second


def test_the_numbers_of_the_catalog_are_todays() -> None:
    text, catalog = (ROOT / "README.md").read_text(encoding="utf-8"), Catalog(user_files=())
    assert f"{len(catalog.chips)} chips and {len(catalog.offers)} priced offers" in text


@pytest.mark.parametrize(("page", "target"), linked(), ids=lambda part: getattr(part, "name", part))
def test_what_a_page_links_to_is_there(page: Path, target: str) -> None:
    assert (page.parent / target).exists()


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=pytest.mark.slow) if command.startswith(HALF_A_MINUTE) else command
        for command in commands()
        if not is_slow(command)
    ],
)
def test_a_documented_command_runs(
    command: str, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GPUWISE_NO_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(kept / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(kept / "state"))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)[1:]
    if words[0] == "train":
        assert "--plan" not in words or words[words.index("--plan") + 1] == "plan.toml"
        if "--plan" in words:
            made = CliRunner().invoke(main, ["plan", words[1], "--epochs", "1", "--on", "here", "-o", "plan.toml"])
            assert made.exit_code == 0, made.output
        words += ["--steps", "3"] if "--epochs" not in words and "--steps" not in words else []
        if "--resume" in words:  # there must be a run that was stopped
            stopped = CliRunner().invoke(main, [*(word for word in words if word != "--resume"), "--time-limit", "0.1s"])
            assert stopped.exit_code == EXIT_INTERRUPTED, stopped.output
    if words[0] in ("launch", "export") or "--config" in words:  # of the plan that the pages make first
        gpt2 = ["plan", "gpt2", "--tokens", "2B", "--on", "h100-sxm", "-o", "plan.toml"]
        made = CliRunner().invoke(main, KERAS if "keras" in words else gpt2)
        assert made.exit_code == 0, made.output
    if words[0] == "state":  # of the run that the pages make first
        made = CliRunner().invoke(main, ["train", "examples/digits.py:job", "--steps", "3", "--run", words[1]])
        assert made.exit_code == 0, made.output
    if "--config" in words:
        file = words[words.index("--config") + 1]
        exported = CliRunner().invoke(main, ["export", "plan.toml", "--to", EXPORTED[file], "-o", file])
        assert exported.exit_code == 0, exported.output
    if words[0] == "validate":
        words += ["--steps", "1"]
    result = CliRunner().invoke(main, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert (result.output + result.stderr + capfd.readouterr().out).strip()  # ranks print by themselves
