"""Job: its checks, its batch, its fingerprint, its repeated blocks."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from gpuwise.errors import JobError  # noqa: E402
from gpuwise.job import Job, checked_batch, fingerprint, repeated_blocks  # noqa: E402
from gpuwise.job.presets import preset_job  # noqa: E402

JOB = Job(
    model=lambda: nn.Linear(20, 2),
    batch=lambda n: {"x": torch.randn(n, 20), "y": torch.randint(0, 2, (n,))},
    loss=lambda model, batch: nn.functional.cross_entropy(model(batch["x"]), batch["y"]),
)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"model": nn.Linear(2, 2).weight}, "model"),
        ({"batch": {}}, "batch"),
        ({"loss": None}, "loss"),
        ({"data": [1]}, "data"),
        ({"optimizer": "adamax"}, "adamax"),
        ({"sample_unit": "words"}, "words"),
        ({"samples": 0}, "samples"),
        ({"samples": True}, "samples"),
        ({"seq_len": -1}, "seq_len"),
        ({"learning_rate": 0.0}, "learning_rate"),
    ],
)
def test_a_field_that_makes_no_sense_is_refused(change, word):
    with pytest.raises(JobError, match=word):
        replace(JOB, **change)


def test_a_function_may_be_the_optimizer():
    assert replace(JOB, optimizer=torch.optim.SGD).optimizer is torch.optim.SGD


def test_checked_batch_gives_the_batch():
    assert checked_batch(JOB, 5)["x"].shape == (5, 20)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (lambda n: {"x": torch.randn(20, n)}, r"batch\['x'\] of shape \(20, 3\).*must be 3"),
        (lambda n: [torch.randn(n), (torch.tensor(1.0),)], r"batch\[1\]\[0\] of shape \(\)"),
        (lambda n: torch.randn(1, n), r"batch of shape \(1, 3\)"),
        (lambda n: {"x": [1, 2]}, "holds no tensors, it is dict"),
        (lambda n: None, "no tensors, it is NoneType"),
        (lambda n: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_batch_of_the_wrong_shape_is_named(batch, message):
    with pytest.raises(JobError, match=message) as caught:
        checked_batch(replace(JOB, batch=batch), 3)
    assert caught.value.ways_out


def test_fingerprint_follows_name_and_parameters():
    same = fingerprint(replace(JOB, learning_rate=0.1, samples=7, optimizer="sgd"))
    assert same == fingerprint(JOB)
    others = [
        replace(JOB, name="other"),
        replace(JOB, model=lambda: nn.Linear(20, 3)),
        replace(JOB, model=lambda: nn.Linear(20, 2, dtype=torch.bfloat16)),
    ]
    assert len({same, *(fingerprint(job) for job in others)}) == 4


def test_fingerprint_is_the_same_in_another_process():
    code = "from gpuwise.job import fingerprint, resolve; print(fingerprint(resolve('tabular-mlp')))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert printed == fingerprint(preset_job("tabular-mlp"))


def test_fingerprint_leaves_the_random_state_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    fingerprint(JOB)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("model", "message"),
    [(lambda: 1 / 0, "ZeroDivisionError"), (lambda: "net", "must return an nn.Module, it returned str")],
)
def test_a_model_function_that_fails_is_reported(model, message):
    with pytest.raises(JobError, match=message):
        fingerprint(replace(JOB, model=model))


class Layer(nn.Module):
    def __init__(self, width: int, inner: int = 0):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.inner = nn.ModuleList(Layer(width) for _ in range(inner))


def test_blocks_of_two_stacks_are_all_found_and_inner_ones_are_not():
    outer = nn.ModuleList(Layer(8, inner=2) for _ in range(3))
    other = nn.Sequential(Layer(4), Layer(8))
    assert repeated_blocks(nn.ModuleDict({"a": outer, "b": other})) == [*outer, *other]


def test_plain_sequential_blocks_are_found_when_they_are_alike():
    model = nn.Sequential(nn.Linear(4, 8), *(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)))
    assert repeated_blocks(model) == list(model)[1:]
    assert repeated_blocks(nn.Sequential(nn.Sequential(nn.Linear(4, 8)), nn.Sequential(nn.Linear(8, 4)))) == []


def test_a_path_that_only_begins_alike_is_not_inside():
    model = nn.Sequential(*(Layer(4) for _ in range(12)))  # "1" and "10", "11"
    assert len(repeated_blocks(model)) == 12


def test_importing_the_package_needs_no_torch():
    code = "import sys; sys.modules['torch'] = None; import gpuwise.job, gpuwise.trace.presets.table"
    subprocess.run([sys.executable, "-c", code], check=True)
