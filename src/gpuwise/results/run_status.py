"""RunStatus: whether a run goes on, and how far it is; the content of RUN/state.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

RUNNING, INTERRUPTED, DONE, FAILED = "running", "interrupted", "done", "failed"
# Of `gpuwise state`. 75 is EX_TEMPFAIL of sysexits.h: started again, the run may go on.
EXIT_CODES = {DONE: 0, FAILED: 1, RUNNING: 3, INTERRUPTED: 75}


@dataclass(frozen=True)
class StopReason:
    """Why an attempt has ended.

    Attributes:
        kind: "signal" | "notice" | "time limit" | "left" (a loop that was left early) | "early stop" | "killed" (its process
            is gone without a word) | the code of an error, such as "bad-job", "rank-lost" or "not-saved".
        text: the signal's name, or a sentence.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class RunStatus:
    """Where a run stands. An attempt is one start of its training.

    Attributes:
        state: "running" | "interrupted" (started again, it goes on) | "done" | "failed" (started again, it would fail again).
        step: optimizer steps taken when this was written.
        steps: optimizer steps of the whole run; None before the data is open.
        checkpoint_step: step of the newest complete checkpoint; None without one.
        exit_code: exit code of the attempt as `gpuwise train` gives it; None while it runs, or after it was killed.
        reason: why the attempt has ended; None while it runs, or once all steps are taken.
        attempts: starts so far.
        attempts_without_checkpoint: the latest of them in a row, this one included, that have saved nothing.
        began: start of the attempt, in UTC (ISO 8601).
        written: time of writing, in UTC. A running attempt writes when it begins and after each checkpoint.
        host: machine of the attempt, or of its rank 0.
        pid: process of the attempt there, or of its rank 0.
        ranks: number of ranks.
        gpuwise_version: version that wrote it.
    """

    state: str
    step: int
    steps: int | None
    checkpoint_step: int | None
    exit_code: int | None
    reason: StopReason | None
    attempts: int
    attempts_without_checkpoint: int
    began: str
    written: str
    host: str
    pid: int
    ranks: int
    gpuwise_version: str

    @property
    def may_continue(self) -> bool:
        """Whether `gpuwise train`, started again, goes on with the run."""
        return self.state == INTERRUPTED

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> RunStatus:
        """The status of a dictionary as `to_dict` makes it; other keys are ignored. Raises ValueError."""
        state = _text(data, "state")
        if state not in EXIT_CODES:
            raise ValueError(f"unknown state {state!r}")
        reason = data.get("reason")
        if reason is not None and not isinstance(reason, Mapping):
            raise ValueError(f"no reason: {reason!r}")
        return cls(
            state=state,
            step=_count(data, "step"),
            steps=_count_or_none(data, "steps"),
            checkpoint_step=_count_or_none(data, "checkpoint_step"),
            exit_code=_count_or_none(data, "exit_code"),
            reason=None if reason is None else StopReason(_text(reason, "kind"), _text(reason, "text")),
            attempts=_count(data, "attempts"),
            attempts_without_checkpoint=_count(data, "attempts_without_checkpoint"),
            began=_text(data, "began"),
            written=_text(data, "written"),
            host=_text(data, "host"),
            pid=_count(data, "pid"),
            ranks=_count(data, "ranks"),
            gpuwise_version=_text(data, "gpuwise_version"),
        )


def _text(data: Mapping[str, object], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} is no text: {value!r}")
    return value


def _count(data: Mapping[str, object], name: str) -> int:
    value = data.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} is no count: {value!r}")
    return value


def _count_or_none(data: Mapping[str, object], name: str) -> int | None:
    return None if data.get(name) is None else _count(data, name)
