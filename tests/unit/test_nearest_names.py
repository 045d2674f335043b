"""Misspelled names, keys, flags and values: the answer is the nearest there is."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import gpuwise
from gpuwise.cli.main import main


def run(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (("chips", "kind=gpu-consumr"), "gpu-consumer"),
        (("chips", "kind!=gpu-consumr"), "gpu-consumer"),
        (("chips", "kind=cpu,gpu-consumr"), "gpu-consumer"),
        (("chips", "vendor=nvida"), "NVIDIA"),
        (("chips", "memry>=24GB"), "memory"),
        (("offers", "provider=awz"), "aws"),
        (("offers", "terms=spott"), "spot"),
        (("offers", "chip=rtx-4909"), "rtx-4090"),
        (("forecast", "gpt2", "--on", "t4", "--batch-size", "4"), "--micro-batch"),
        (("forecast", "gpt2", "--on", "t4", "--micro-bach", "4"), "--micro-batch"),
        (("plan", "gpt2", "--batch-size", "4"), "--micro-batch"),
        (("train", "gpt2", "--gradient-accumulation-steps", "4"), "--accumulate"),
    ],
)
def test_on_the_command_line(arguments: tuple[str, ...], near: str):
    result = run(*arguments)
    assert result.exit_code == 2
    line = next(line for line in result.stderr.splitlines() if "nearest:" in line)
    assert near in line.split("nearest: ")[1].split(", ")


def test_values_that_some_chip_has_pass():
    assert len(gpuwise.api.listings.chips("kind=gpu")) > len(gpuwise.api.listings.chips("kind=gpu-consumer")) > 10


@pytest.mark.parametrize("verb", [gpuwise.forecast, gpuwise.fit, gpuwise.compare])
def test_keywords_of_the_api(verb):
    with pytest.raises(gpuwise.InputError, match="unknown setting 'batch_size'") as raised:
        verb("gpt2", on="t4", batch_size=4)
    assert "nearest: micro_batch" in raised.value.ways_out[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[chip.rtx-4909]\nmsrp_usd = 1599\n", "line 1: there is no 'rtx-4909' to change (nearest: rtx-4090"),
        ("[chip.rtx-4090]\nmsrp = 1599\n", "line 2: unknown key 'msrp' (nearest: msrp_usd"),
        ('[[offer]]\nprovider = "a"\ninstance = "b"\nchip = "rtx-4909"\n', "unknown chip 'rtx-4909' (nearest: rtx-4090"),
        ("[link.nvlink-44]\nyear = 2024\n", "line 1: there is no 'nvlink-44' to change (nearest: nvlink"),
    ],
)
def test_in_the_users_files(text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GPUWISE_CONFIG_DIR", str(tmp_path))
    (tmp_path / "mine.toml").write_text(text)
    result = run("offers")
    assert result.exit_code == 2
    assert said in result.stderr
