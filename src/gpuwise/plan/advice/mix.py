"""The user's mix of jobs (`gpuwise plan --buy jobs.toml`), read and checked.

circuit = "us"                      # or "eu": the wall socket; none is checked without it
machines = ["rtx-4090:2"]           # what to compare; a list of usual machines by default
electricity = 0.30                  # and the other keys of --costs

[[job]]
job = "gpt2"                        # as on the command line
samples = "200k"                    # length of a run: samples, epochs or tokens
runs_a_week = 3
seq_len = 1024                      # and any other setting of a step

[[job]]
job = "resnet50"
hours_a_week = 10                   # what this device does in so many hours
on = "rtx-4090"

[[job]]
job = "llama3-8b"
tokens = "1B"
runs_a_week = 0.1
where = "cloud"                     # compare renting for this job, and buying for the others, too
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpuwise.errors import shown
from gpuwise.hardware.hosts import circuits, machines_to_compare
from gpuwise.plan.economics.owned import WEEK_HOURS
from gpuwise.plan.user_file import UserTable, read_user_file
from gpuwise.plan_settings import OfferSettings
from gpuwise.step_settings import Setting, StepSettings, WorkSettings, settings_of

_OWN_KEYS = ("job", "runs_a_week", "hours_a_week", "on", "name", "where")
_LENGTH = ("samples", "epochs", "tokens")
_FILE_KEYS = ("circuit", "machines", "job")
_MOST_RUNS = 1e6
_WHERE = ("own", "cloud")


@dataclass(frozen=True)
class WeeklyJob:
    """One job of the mix.

    Attributes:
        name: of its rows in the answer.
        job: the JOB argument.
        settings: keywords of gpuwise.plan: settings of a step, and the length of a run.
        runs_a_week: number of runs; None where hours_a_week says how much is done.
        hours_a_week: hours of work on the device `on`, as one run a week; None where runs_a_week is set.
        on: that device; "" with runs_a_week.
        in_cloud: whether to compare renting for this job beside a bought machine, too. False by default.
    """

    name: str
    job: str
    settings: Mapping[str, object]
    runs_a_week: float | None
    hours_a_week: float | None = None
    on: str = ""
    in_cloud: bool = False


@dataclass(frozen=True)
class Mix:
    """All jobs, the machines to compare, and the household circuit ("" for none)."""

    jobs: tuple[WeeklyJob, ...]
    machines: tuple[str, ...]
    circuit: str = ""


def read_mix(path: str, *, cost_keys: tuple[str, ...]) -> tuple[Mix, UserTable]:
    """The mix of a file, and the file, whose other keys are those of costs. Raises FileFormatError."""
    file = read_user_file(path)
    file.check_keys((*_FILE_KEYS, *cost_keys))
    rows = file.rows("job")
    if not rows:
        raise file.fail(None, "no job is in it", 'add one: [[job]] with job = "gpt2", samples = "200k" and runs_a_week = 3')
    jobs = [_job(row) for row in rows]
    names = [job.name for job in jobs]
    for row, name in zip(rows, names, strict=True):
        if names.count(name) > 1:
            raise row.fail("name", f"two jobs are called {name!r}", 'give each a name: name = "..."')
    circuit = file.words("circuit") or ""
    if circuit and circuit not in circuits():
        raise file.fail("circuit", f"unknown circuit {circuit!r}", f"one of: {', '.join(circuits())}")
    return Mix(tuple(jobs), _machines(file), circuit), file


def _machines(file: UserTable) -> tuple[str, ...]:
    """The named machines, those with a table of costs, or the usual ones."""
    value = file.values.get("machines")
    if value is None:
        return tuple(dict.fromkeys((*file.names("machine"), *machines_to_compare())))
    if not isinstance(value, list) or not value or not all(isinstance(name, str) and name.strip() for name in value):
        raise file.fail("machines", f"machines must be a list of devices, got {shown(value)}", 'machines = ["rtx-4090:2"]')
    return tuple(dict.fromkeys(value))


def job_keys() -> tuple[str, ...]:
    """Keys of a [[job]]."""
    return (*_OWN_KEYS, *_settings())


def _settings() -> dict[str, tuple[type, Setting]]:
    """Settings of a step and of a run that a [[job]] may have, with their types."""
    batch = {"global_batch": settings_of(OfferSettings)["global_batch"]}
    return {**settings_of(StepSettings), **settings_of(WorkSettings), **batch}


def _job(row: UserTable) -> WeeklyJob:
    taken = _settings()
    row.check_keys(job_keys())
    job = row.words("job")
    if job is None:
        raise row.fail(None, "a [[job]] without job", 'job = "gpt2"')
    runs = row.number("runs_a_week", least=0, most=_MOST_RUNS, above=True)
    hours = row.number("hours_a_week", least=0, most=WEEK_HOURS, above=True)
    on, length = row.words("on"), [key for key in _LENGTH if key in row.values]
    if (runs is None) == (hours is None):
        what = "both runs_a_week and hours_a_week" if runs is not None else "neither runs_a_week nor hours_a_week"
        raise row.fail("hours_a_week" if runs is not None else None, f"{job} has {what}", "one says how much is done in a week")
    if hours is not None and (on is None or length):
        raise row.fail(
            "hours_a_week",
            f"{job} has hours_a_week, " + (f"and {length[0]}" if length else "but not the device whose hours they are"),
            'hours_a_week = 10 goes with on = "rtx-4090"',
            'or a length of a run (samples = "200k") with runs_a_week',
        )
    if runs is not None and (on is not None or not length):
        key, what = ("on", "a device for its hours") if on is not None else (None, "no length of a run")
        raise row.fail(key, f"{job} has runs_a_week and {what}", 'samples, epochs or tokens: samples = "200k"')
    for key, (kind, setting) in taken.items():
        value = row.values.get(key)
        if value is not None and not _suits(value, kind):
            raise row.fail(key, f"{key} must be {'true or false' if kind is bool else 'a number'}, got {shown(value)}")
        if setting.choices and value is not None and value not in setting.choices:
            raise row.fail(key, f"unknown {key} {shown(value)}", f"one of: {', '.join(setting.choices)}")
    settings = {key: row.values[key] for key in taken if key in row.values}
    where = row.words("where") or "own"
    if where not in _WHERE:
        raise row.fail("where", f"unknown where {where!r}", f"one of: {', '.join(_WHERE)}")
    return WeeklyJob(row.words("name") or job, job, settings, runs, hours, on or "", where == "cloud")


def _suits(value: object, kind: type) -> bool:
    """Whether a value of a file is of a setting's type; text is parsed where it is taken, numbers included."""
    if kind is bool:
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    return isinstance(value, (str, int, float) if kind is str else (int,) if kind is int else (int, float))
