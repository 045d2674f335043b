"""A JOB argument becomes a Job, or a clear error."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch")

from gpuwise.errors import InputError, JobError, MissingDependencyError, UnknownNameError  # noqa: E402
from gpuwise.job import Job, checked_batch, resolve  # noqa: E402
from gpuwise.strategy import OPTIMIZERS  # noqa: E402
from gpuwise.trace.presets.table import PRESETS  # noqa: E402

FILE = """
import torch
from torch import nn
from gpuwise.job import Job
import neighbour

def make(seq_len=8):
    return Job(model=lambda: nn.Linear(seq_len, 2), seq_len=seq_len,
               batch=lambda n: {"x": torch.randn(n, seq_len)}, loss=lambda m, b: m(b["x"]).sum())

def broken():
    raise RuntimeError("no data here")

def nothing():
    return None

job = make()
number = neighbour.NUMBER
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "neighbour.py").write_text("NUMBER = 7\n")
    path = tmp_path / "train.py"
    path.write_text(FILE)
    yield path
    for name in [name for name in sys.modules if name == "neighbour" or name.startswith("gpuwise_job_")]:
        del sys.modules[name]


@pytest.mark.parametrize("name", PRESETS)
def test_presets_carry_their_facts(name):
    job, info = resolve(name), PRESETS[name]
    assert (job.name, job.seq_len, job.image_size) == (name, info.seq_len, info.image_size)
    assert job.optimizer in OPTIMIZERS
    assert (job.sample_unit == "token") == (job.tokens_per_sample is not None)
    for flag, value in (("--seq-len", info.seq_len), ("--image-size", info.image_size), ("--samples", info.samples)):
        assert any(guess.flag == flag for guess in job.assumptions) == (value is not None)


def test_a_size_that_is_given_is_no_longer_a_guess():
    job = resolve("gpt2", seq_len=256)
    assert (job.seq_len, job.tokens_per_sample) == (256, 256)
    assert not any(guess.flag == "--seq-len" for guess in job.assumptions)
    assert checked_batch(job, 2)["tokens"].shape == (2, 256)
    assert checked_batch(resolve("sd15-unet", image_size=256), 2)["latents"].shape == (2, 4, 32, 32)


@pytest.mark.parametrize(
    ("name", "sizes", "word"),
    [
        ("bert-base", {"seq_len": 513}, "512"),
        ("gpt2", {"seq_len": 2048}, "1,024"),
        ("gpt2", {"seq_len": 0}, "--seq-len"),
        ("llama3-8b", {"seq_len": -4}, "--seq-len"),
        ("llama3-8b", {"seq_len": 2_000_000}, "1,048,576"),
        ("resnet50", {"seq_len": 128}, "no sequence length"),
        ("gpt2", {"image_size": 224}, "no image size"),
        ("resnet50", {"image_size": 8}, "64"),
        ("vit-b16", {"image_size": 225}, "multiples of 16"),
        ("sd15-unet", {"image_size": 500}, "multiples of 64"),
    ],
)
def test_a_size_the_model_cannot_take_is_refused(name, sizes, word):
    with pytest.raises(InputError, match=word):
        resolve(name, **sizes)


def test_an_unknown_preset_is_answered_with_near_names():
    with pytest.raises(UnknownNameError, match="resnet51") as caught:
        resolve("resnet51")
    assert "resnet50" in caught.value.ways_out[0]
    with pytest.raises(UnknownNameError):
        resolve("")


def test_a_file_gives_a_job_or_calls_a_function(file):
    assert resolve(f"{file}:job").name == "train:job"
    assert resolve(f"{file}:make").seq_len == 8
    assert resolve(f"{file}:make", seq_len=16).seq_len == 16
    assert str(file.parent) not in sys.path


@pytest.mark.parametrize(
    ("suffix", "message"),
    [
        ("", "names a file but no job"),
        (":", "names a file but no job"),
        (":jobs", "has no 'jobs'"),
        (":number", "number is of type int, not a Job"),
        (":nothing", r"nothing\(\) returned of type NoneType"),
        (":Job", "the class Job"),
        (":broken", "RuntimeError: no data here"),
    ],
)
def test_what_is_not_a_job_is_refused(file, suffix, message):
    with pytest.raises(JobError, match=message) as caught:
        resolve(f"{file}{suffix}")
    assert caught.value.ways_out


def test_a_missing_name_is_answered_with_what_the_file_has(file):
    with pytest.raises(JobError) as caught:
        resolve(f"{file}:jobb")
    assert "job" in caught.value.ways_out[0]


def test_a_missing_file_and_a_file_of_another_kind(tmp_path):
    with pytest.raises(JobError, match="there is no file"):
        resolve(f"{tmp_path}/none.py:job")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(JobError, match="not a Python file"):
        resolve(f"{tmp_path}/notes.txt:job")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import no_such_package", "ModuleNotFoundError"),
        ("def f(:", "SyntaxError"),
        ("import sys; sys.exit(3)", "SystemExit"),
        ("x = [][1]", "IndexError"),
    ],
)
def test_a_file_that_raises_while_loading(tmp_path, code, message):
    path = tmp_path / "broken.py"
    path.write_text(code)
    with pytest.raises(JobError, match=f"broken.py raised while loading: {message}") as caught:
        resolve(f"{path}:job")
    assert ("install what it imports" in caught.value.ways_out[0]) == (message == "ModuleNotFoundError")
    assert not [name for name in sys.modules if name.startswith("gpuwise_job_broken")]


def test_a_size_the_file_does_not_take(file):
    with pytest.raises(JobError, match="does not take --seq-len"):
        resolve(f"{file}:job", seq_len=99)


def test_a_job_of_the_file_keeps_its_own_name(tmp_path):
    path = tmp_path / "named.py"
    path.write_text("from gpuwise.job import Job\njob = Job(model=print, batch=print, loss=print, name='mine')")
    assert isinstance(resolve(f"{path}:job"), Job)
    assert resolve(f"{path}:job").name == "mine"


@pytest.mark.parametrize(
    ("text", "absent", "extra"),
    [
        ("gpt2", "torch", "gpuwise[torch]"),
        ("x.py:job", "torch", "gpuwise[torch]"),
        ("hf:./folder", "transformers", "gpuwise[hf]"),
        ("timm:resnet18", "timm", "gpuwise[timm]"),
        ("keras:net.py:model", "keras", "gpuwise[keras]"),
    ],
)
def test_a_missing_package_names_its_extra(monkeypatch, text, absent, extra):
    monkeypatch.setitem(sys.modules, absent, None)  # importing it raises ModuleNotFoundError
    with pytest.raises(MissingDependencyError) as caught:
        resolve(text)
    assert extra in caught.value.ways_out[0]


@pytest.mark.parametrize("text", ["hf:", "timm:", "keras:"])
def test_a_scheme_without_a_model(text):
    with pytest.raises(JobError, match="names no model"):
        resolve(text)
