"""Fits of classical jobs in a child process: real estimators, and what goes wrong in them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from gpuwise.api import classical_forecast
from gpuwise.cli.main import main
from gpuwise.cost.forecast import Interval
from gpuwise.errors import DoesNotFitError, GpuwiseError, InputError, JobError
from gpuwise.hardware import load_catalog
from gpuwise.measure import fits
from gpuwise.measure.fit_ladder import sizes
from gpuwise.measure.fits import time_fits
from gpuwise.plan.cpu.full_fit import FullFit, judge
from gpuwise.plan.cpu.growth import growth_of

HEAD = """
import os, signal, time
import numpy as np
from gpuwise import ClassicalJob

class Own:
    def fit(self, X, y):
        {body}

def data(n):
    return np.ones((n, 2)), np.ones(n)

job = ClassicalJob(Own, data=data, samples=1000) if False else ClassicalJob(lambda: Own(), data=data, samples={samples})
"""


WORK = "sum(range(1000 * len(X)))"  # in proportion to the rows


def job_file(folder: Path, body: str = WORK, samples: int = 1000) -> str:
    path = folder / "own.py"
    path.write_text(HEAD.format(body=body, samples=samples))
    return f"{path}:job"


def real_file(folder: Path, imports: str, estimator: str) -> str:
    path = folder / "real.py"
    path.write_text(
        f"{imports}\nimport numpy as np\nfrom gpuwise import ClassicalJob\n"
        "X = np.random.default_rng(0).standard_normal((800, 5))\n"
        f"job = ClassicalJob({estimator}, data=(X, (X[:, 0] > 0).astype(int)))\n"
    )
    return f"{path}:job"


@pytest.mark.parametrize("largest", [1, 99, 100, 199, 200, 6399, 6400, 12345, 10**9])
def test_sizes_multiply_up_to_all_rows(largest: int):
    rows = sizes(largest)
    assert rows[-1] == largest
    assert rows == sorted(set(rows))
    times = 4 if largest >= 6400 else 2
    assert all(after // times == before for before, after in pairwise(rows))
    assert rows[0] < 100 * times


def test_a_job_that_is_short_enough_is_measured(tmp_path: Path):
    begun: list[int] = []
    result = classical_forecast(job_file(tmp_path), on_fit=begun.append)
    assert result.measured
    assert begun == [fit.samples for fit in result.fits]
    assert begun[:3] + begun[-1:] == [125, 250, 500, 1000]
    assert result.time_s.low == result.time_s.value == result.fits[-1].seconds
    assert result.cpu_enough.verdict == "enough"
    assert result.cpu_enough.figures["samples"] == 1000
    assert "your CPU is enough: a fit on 1,000 rows takes" in str(result)
    assert json.dumps(result.to_dict())


def test_more_rows_than_there_are_is_extrapolated(tmp_path: Path):
    file = real_file(tmp_path, "from sklearn.linear_model import LogisticRegression", "LogisticRegression()")
    result = classical_forecast(file, samples="1M", deadline="1h")
    assert not result.measured
    assert (result.samples, result.fits[-1].samples) == (1_000_000, 800)
    assert result.time_s.low < result.time_s.value < result.time_s.high
    assert result.estimator == "LogisticRegression"


SEARCH = "GridSearchCV(make_pipeline(StandardScaler(), SVC()), {'svc__C': [1, 10]}, cv=2)"
SEARCHED = """from sklearn.svm import SVC
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.model_selection import GridSearchCV"""


@pytest.mark.parametrize(
    ("package", "imports", "estimator"),
    [
        ("sklearn", SEARCHED, SEARCH),
        ("xgboost", "from xgboost import XGBClassifier", "XGBClassifier(n_estimators=5, n_jobs=1)"),
        ("lightgbm", "from lightgbm import LGBMClassifier", "LGBMClassifier(n_estimators=5, n_jobs=1, verbose=-1)"),
    ],
)
def test_estimators_of_the_libraries(package: str, imports: str, estimator: str, tmp_path: Path):
    pytest.importorskip(package)
    timed = time_fits(real_file(tmp_path, imports, estimator))
    assert timed is not None
    assert timed.measured
    assert [fit.samples for fit in timed.fits][:3] == [100, 200, 400]
    assert all(fit.seconds > 0 and fit.cpu_s > 0 for fit in timed.fits)
    assert all((fit.peak_bytes or 1e9) > 1e7 for fit in timed.fits)


def test_memory_that_the_fit_allocates_is_in_its_peak(tmp_path: Path):
    timed = time_fits(job_file(tmp_path, "np.ones(len(X) * 100_000)", samples=800))  # 640 MB
    assert timed is not None
    smallest, largest = timed.fits[0].peak_bytes, timed.fits[-1].peak_bytes
    assert smallest is not None
    assert largest is not None
    assert largest - smallest == pytest.approx(700 * 100_000 * 8, rel=0.1)


def test_memory_that_runs_out_is_a_result(tmp_path: Path):
    file = job_file(tmp_path, "np.empty(len(X) ** 2 * 100)", samples=6000)  # 29 GB, 1.8 GB at 1,500
    timed = time_fits(file, available_bytes=2 * 2**30)
    assert timed is not None
    assert not timed.measured
    assert timed.ended is not None
    assert timed.ended.kind == "fits-ended-by-memory"
    assert "ran out of memory, of which 2 GiB was left" in timed.ended.text


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("len(X) > 600 and os.kill(os.getpid(), signal.SIGKILL); " + WORK, "fits-ended-by-memory"),
        ("len(X) > 600 and os.kill(os.getpid(), signal.SIGSEGV); " + WORK, "fit-died"),
        ("len(X) > 600 and os._exit(3); " + WORK, "fit-died"),
    ],
)
def test_a_fit_that_is_killed_ends_the_sizes(body: str, kind: str, tmp_path: Path):
    timed = time_fits(job_file(tmp_path, body))
    assert timed is not None
    assert [fit.samples for fit in timed.fits] == [125, 250, 500]
    assert timed.ended is not None
    assert timed.ended.kind == kind


def test_a_fit_that_never_ends_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fits, "PATIENCE_S", 0.1)
    timed = time_fits(job_file(tmp_path, "while len(X) > 600: pass\n        " + WORK), limit_s=3.0)
    assert timed is not None
    assert timed.ended is not None
    assert timed.ended.kind == "fit-took-too-long"
    with pytest.raises(JobError, match="too few sizes were fitted to extrapolate from \\(no size\\)"):
        time_fits(job_file(tmp_path, "while True: pass"), limit_s=1.0)


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ("1 / 0", JobError, "fit on 1,000 rows raised: ZeroDivisionError: division by zero"),
        ("len(X) > 300 and 1 / 0; " + WORK, JobError, "fit on 500 rows raised: ZeroDivisionError"),
        ("raise MemoryError", DoesNotFitError, "ran out of memory"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", JobError, "too few sizes .* killed by SIGSEGV"),
    ],
)
def test_errors_of_the_user(body: str, error: type[GpuwiseError], message: str, tmp_path: Path):
    with pytest.raises(error, match=message):
        time_fits(job_file(tmp_path, body))


def test_small_sizes_may_raise(tmp_path: Path):
    timed = time_fits(job_file(tmp_path, "assert len(X) > 200; " + WORK))
    assert timed is not None
    assert [fit.samples for fit in timed.fits] == [250, 500, 1000]


def run(*words: str):
    return CliRunner().invoke(main, list(words))


def test_the_command_line(tmp_path: Path):
    file = job_file(tmp_path)
    for verb in (["plan", file], ["forecast", file, "--on", "here"]):
        answer = run(*verb, "--json")
        assert answer.exit_code == 0, answer.output
        assert json.loads(answer.stdout)["cpu_enough"]["verdict"] == "enough"
    late = json.loads(run("plan", file, "--samples", "100G", "--deadline", "1s", "--trial-limit", "1s", "--json").stdout)
    assert late["cpu_enough"]["verdict"] == "not-enough"
    assert "the deadline is 1 s" in late["cpu_enough"]["text"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan", "JOB", "--precision", "fp32"], "an estimator with fit, which has no --precision"),
        (["plan", "JOB", "--own", "rtx-4090"], "has no --own"),
        (["forecast", "JOB", "--on", "h100-sxm"], "timed on this machine alone, not on h100-sxm"),
        (["forecast", "JOB", "--on", "here", "--timeline", "-"], "has no --timeline"),
        (["plan", "JOB", "--trial-limit", "never"], "cannot read 'never' as a duration"),
        (["plan", "BARE"], "is an estimator without data"),
        (["fit", "JOB", "--on", "here"], "is a ClassicalJob, which only plan and forecast take"),
    ],
)
def test_what_an_estimator_does_not_take(words: list[str], message: str, tmp_path: Path):
    file = job_file(tmp_path)
    (tmp_path / "bare.py").write_text("# no ClassicalJob\nfrom sklearn.svm import SVC\njob = SVC()\n")
    answer = run(*(word.replace("JOB", file).replace("BARE", f"{tmp_path / 'bare.py'}:job") for word in words))
    assert answer.exit_code == 2
    assert message in answer.stderr


def test_a_job_object_needs_its_file():
    with pytest.raises(InputError, match="loads it from its file"):
        classical_forecast(np.ones(3))  # type: ignore[arg-type]


def test_a_file_with_both_kinds_of_job(tmp_path: Path):
    path = tmp_path / "both.py"
    path.write_text("# ClassicalJob, or a Job\nnumber = 3\n")
    answer = run("plan", f"{path}:number")
    assert answer.exit_code == 2
    assert "number is of type int, not a Job" in answer.stderr


GIB = 2**30


@pytest.mark.parametrize(
    ("seconds", "memory_gib", "verdict", "words"),
    [
        (100.0, 10, "enough", "your CPU is enough"),
        (3000.0, 10, "uncertain", "it may be that the deadline is 1 h"),
        (4000.0, 10, "not-enough", "and the deadline is 1 h"),
        (100.0, 28, "uncertain", "it may be that its memory, 28 GiB (14 GiB to 56 GiB), is more than 32 GiB"),
        (100.0, 40, "not-enough", "and its memory, 40 GiB (20 GiB to 80 GiB), is more than 32 GiB"),
    ],
)
def test_the_verdict_is_that_of_the_intervals(seconds: float, memory_gib: float, verdict: str, words: str):
    growth = growth_of([100, 200, 400], [seconds / 40, seconds / 20, seconds / 10])
    time, memory = (Interval(x, x / 2, x * 2) for x in (seconds, memory_gib * GIB))
    fit = FullFit(4000, time, memory, growth, cores=1.0, measured=False)
    result = judge(fit, capacity_bytes=32 * GIB, processors=2, deadline_s=3600.0, catalog=load_catalog())
    assert result.verdict == verdict
    assert words in result.text
    kinds = [note.kind for note in result.notes]
    assert ("rows-in-time" in kinds) == (seconds >= 3000)
    assert ("machine-with-memory" in kinds) == (memory_gib > 20)
