"""What a newcomer gives to a Job in place of what it takes, and what the error tells to write."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from gpuwise import Job, JobError  # noqa: E402
from gpuwise.job import resolve  # noqa: E402


class Net(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.layer = nn.Linear(8, width)


GOOD = {"model": lambda: nn.Linear(8, 2), "batch": lambda n: torch.randn(n, 8), "loss": lambda m, x: m(x).square().mean()}


@pytest.mark.parametrize(
    ("field", "value", "way"),
    [
        ("model", nn.Linear(8, 2), "write model=lambda: nn.Linear(in_features=8, out_features=2"),
        ("model", Net(3), "write model=lambda: Net(...)"),
        ("model", Net, "write model=lambda: Net(...)"),
        ("batch", torch.zeros(4, 3, 8), "write batch=lambda n: torch.randn(n, 3, 8)"),
        ("batch", torch.zeros(4, 3, dtype=torch.int64), "write batch=lambda n: torch.randint(0, 10, (n, 3))"),
        ("batch", {"x": torch.zeros(4, 3)}, 'write batch=lambda n: {"x"'),
        ("batch", lambda: torch.zeros(4), "write batch=lambda n: ..."),
        ("loss", nn.CrossEntropyLoss(), "write loss=lambda model, batch: nn.CrossEntropyLoss()(model("),
        ("loss", F.mse_loss, "write loss=lambda model, batch: F.mse_loss(model("),
        ("loss", lambda batch: batch, "write loss=lambda model, batch: ..."),
        ("data", torch.utils.data.TensorDataset(torch.zeros(4, 8)), "write data=lambda: ..."),
        (
            "optimizer",
            torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.5),
            "write optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5)",
        ),
    ],
)
def test_the_thing_itself_is_answered_with_the_function_that_makes_it(field: str, value: object, way: str):
    with pytest.raises(JobError) as raised:
        Job(**{**GOOD, field: value})
    assert f"a job's {field}" in raised.value.what
    assert raised.value.ways_out[0].startswith(way)


@pytest.mark.parametrize(
    ("keyword", "said"),
    [
        ("batch_size", "micro_batch=32"),
        ("lr", "nearest: learning_rate"),
        ("optimiser", "nearest: optimizer"),
        ("dataset", "nearest: data"),
        ("epochs", "gpuwise.train"),
        ("zzz", "it has: model, batch"),
    ],
)
def test_an_unknown_keyword_gets_the_nearest(keyword: str, said: str):
    with pytest.raises(JobError, match=f"a Job has no {keyword!r}") as raised:
        Job(**GOOD, **{keyword: 1})
    assert said in str(raised.value)


def test_what_a_job_takes_is_left_alone():
    """Modules with arguments of their own, partial functions, built-ins without a signature, and copies."""
    job = Job(model=nn.Identity, batch=torch.zeros, loss=max, data=dict, optimizer=torch.optim.SGD)
    assert replace(job, name="other").name == "other"
    with pytest.raises(JobError, match="learning_rate"):
        replace(job, learning_rate=-1)


FILE = """
import torch
from torch import nn
from gpuwise import Job
good = dict(model=lambda: nn.Linear(8, 2), batch=lambda n: torch.randn(n, 8), loss=lambda m, x: m(x).square().mean())
first = Job(**good)
second = Job(**{**good,
                "model": nn.Linear(8, 2)})
third = Job(**good, batch_size=4)
def later():
    return Job(**good, lr=1)
"""


def test_one_bad_job_of_a_file_names_its_line_and_leaves_the_others(tmp_path: Path):
    path = tmp_path / "jobs.py"
    path.write_text(FILE)
    assert resolve(f"{path}:first").name == "jobs:first"
    with pytest.raises(JobError, match=r"jobs\.py, line 7: a job's model must be a function"):
        resolve(f"{path}:second")
    with pytest.raises(JobError, match=r"jobs\.py, line 9: a Job has no 'batch_size'"):
        resolve(f"{path}:third")
    with pytest.raises(JobError, match="a Job has no 'lr'"):
        resolve(f"{path}:later")


def test_a_bad_job_that_the_file_goes_on_to_use_is_what_is_said(tmp_path: Path):
    path = tmp_path / "jobs.py"
    path.write_text(f"{FILE}\nprint(second.learning_rate + third.batch)")
    with pytest.raises(JobError, match=r"jobs\.py, line 7: a job's model must be a function"):
        resolve(f"{path}:first")


def test_a_file_that_raises_names_its_line(tmp_path: Path):
    path = tmp_path / "jobs.py"
    path.write_text("x = 1\ny = x / 0\n")
    with pytest.raises(JobError, match=r"raised while loading: ZeroDivisionError.*\(line 2\)"):
        resolve(f"{path}:job")
