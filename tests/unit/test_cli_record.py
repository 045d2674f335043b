"""A recorded step stands for its job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuwise.cli.main import main

JOB = f"{Path(__file__).parents[2] / 'examples' / 'digits.py'}:job"
ON = ("--on", "rtx-4090", "--micro-batch", "64", "--precision", "amp-bf16", "--json")


def run(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


def test_the_file_forecasts_as_the_job_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    made = run("record", JOB, "-o", "digits.npz", "--precision", "amp-bf16")
    assert made.exit_code == 0, made.output
    of_file, of_job = (json.loads(run("forecast", job, *ON).stdout) for job in ("digits.npz", JOB))
    assert of_file == of_job


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((JOB, "-o", "digits.trace"), ".npz"),
        (("tabular-mlp", "-o", "no/folder/job.npz"), "cannot write"),
        (("-o", "digits.npz"), "one JOB"),
        (("gpt2", "bert-base", "-o", "two.npz"), "one JOB"),
        (("gpt2", "--precision", "fp32"), "every variant"),
        (("gtp2",), "unknown preset"),
    ],
)
def test_bad_input_writes_nothing(arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    result = run("record", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert list(tmp_path.iterdir()) == []
