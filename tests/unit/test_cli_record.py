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


DECODER = """
from gpuwise import Job
from gpuwise.job.models.language import next_token_batch, token_loss
from gpuwise.job.models.llama import Llama, LlamaConfig

config = LlamaConfig(vocabulary=512, width=128, layers=2, heads=4, kv_heads=2, hidden=384)
job = Job(lambda: Llama(config), lambda n: next_token_batch(n, vocabulary=512, seq_len=64), token_loss, seq_len=64)
"""
MESH = ("--mesh", "dp_shard=2,tp=2", "--micro-batch", "2")


def test_the_file_of_a_rank_forecasts_as_its_mesh_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "decoder.py").write_text(DECODER)
    made = run("record", "decoder.py:job", "-o", "rank.npz", "--precision", "amp-bf16", *MESH, "--rank", "0")
    assert made.exit_code == 0, made.output
    options = (*MESH, "--on", "h100-sxm:4", "--precision", "amp-bf16", "--json")
    of_file, of_job = (json.loads(run("forecast", job, *options).stdout) for job in ("rank.npz", "decoder.py:job"))
    assert of_file == of_job
    of_file, of_job = (
        json.loads(run("forecast", job, *options, "--optimizer", "momentum").stdout) for job in ("rank.npz", "decoder.py:job")
    )
    assert of_file == of_job
    refused = run("fit", "rank.npz", "--on", "h100-sxm:4", *MESH)
    assert refused.exit_code == 2
    assert "is of rank 0 of --mesh dp_shard=2,tp=2, on which forecast alone prices it" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((JOB, "-o", "rank.npz", "--mesh", "dp=2", "--rank", "2"), "has ranks 0 to 1, not 2"),
        ((JOB, "-o", "one.npz", "--rank", "0"), "a recording of one device has no --rank"),
        ((JOB, "-o", "one.npz", "--micro-batch", "8"), "a recording of one device has no --micro-batch"),
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
