"""What is decided between two steps: whether the run stops, and whether it is saved. Alone, or with other ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from gpuwise.json_types import Json
from gpuwise.notes import Note
from gpuwise.runtime.copies import RunCopies
from gpuwise.runtime.interruption import Stop, StopRequest
from gpuwise.runtime.ranks import Ranks
from gpuwise.runtime.ranks.word import Word
from gpuwise.runtime.run.checkpoint_manager import RunCheckpoints
from gpuwise.runtime.run.evaluation import Evaluations
from gpuwise.runtime.run.meter import Meter


class Decisions:
    """The decisions of a run of one process, by its own clock and signals.

    Arguments:
        stop: signals, notices and deadlines.
        copies: what a checkpoint still takes once it is saved.
    """

    def __init__(self, stop: Stop, *, meter: Meter, checkpoints: RunCheckpoints, copies: RunCopies, evaluations: Evaluations):
        self._stop, self._meter, self._checkpoints, self._evaluations = stop, meter, checkpoints, evaluations
        self._copies = copies

    def due(self, step: int, now_s: float) -> bool:
        """Whether there may be something to decide after this step; costs a comparison or two."""
        return self._stop.pending or now_s >= self._stop.look_s

    def stops(self, step: int, *, evaluates: bool) -> StopRequest | None:
        """Why the run ends after this step, or None.

        Arguments:
            evaluates: whether an evaluation is due before the next step.
        """
        next_s = self._meter.recent_step_time_s + (self._evaluations.took_s if evaluates else 0.0)
        return self._check(self._meter.now_s, next_s)

    def saves(self, step: int) -> bool:
        """Whether the run is saved after this step."""
        return self._meter.now_s >= self._checkpoints.due_s

    def ends_in_a_read(self, now_s: float) -> StopRequest | None:
        """Why the run is to end while the data of its next step does not come. Called in the thread that watches reads."""
        if not self._stop.pending and now_s < self._stop.look_s:
            return None
        return self._check(now_s, self._meter.recent_step_time_s)

    def _check(self, now_s: float, next_s: float) -> StopRequest | None:
        return self._stop.check(now_s, next_s, self._checkpoints.save_s, self._copies.seconds)


class AgreedDecisions(Decisions):
    """The decisions of several ranks. Each rank says what it asks for in a step's Word, and all of them act after one step.

    A signal, a notice or a deadline of any rank stops all. Rank 0 alone decides when to save.

    Arguments:
        lag: steps after which a Word is known to every rank: none on a CPU, some on a device that the host runs ahead of.
    """

    def __init__(
        self,
        ranks: Ranks,
        stop: Stop,
        *,
        lag: int,
        meter: Meter,
        checkpoints: RunCheckpoints,
        copies: RunCopies,
        evaluations: Evaluations,
    ):
        super().__init__(stop, meter=meter, checkpoints=checkpoints, copies=copies, evaluations=evaluations)
        self._ranks, self._lag = ranks, lag
        self._words: dict[int, Word] = {}  # that ask for something, by step
        self._request: StopRequest | None = None  # of this rank
        self._save_ordered_at: int | None = None

    def word(self, step: int, now_s: float) -> Word:
        """What this rank asks for, said in the collective of this step."""
        if self._request is None and (self._stop.pending or now_s >= self._stop.look_s):
            evaluates = step + self._lag >= self._evaluations.due_at
            steps_s = (1 + self._lag) * self._meter.recent_step_time_s
            self._ask(now_s, steps_s + (self._evaluations.took_s if evaluates else 0.0))
        stop = 0.0 if self._request is None else 1.0
        unsaved = float(self._request is not None and not self._request.save)
        return Word(stop, unsaved, float(self._save_is_due(step, now_s)))

    def heard(self, step: int, word: Word) -> None:
        """The word of all ranks of a step, as soon as it is known."""
        if not word.silent:
            self._words[step] = word

    def due(self, step: int, now_s: float) -> bool:
        return step - self._lag in self._words

    def stops(self, step: int, *, evaluates: bool) -> StopRequest | None:
        word = self._words.get(step - self._lag)
        if word is None or not word.stop:
            return None
        request = _request_of(self._ranks.first_of("stop", None))
        return replace(_request_of(self._ranks.first_of("unsaved", None)), text=request.text) if word.unsaved else request

    def saves(self, step: int) -> bool:
        word = self._words.pop(step - self._lag, None)
        if self._save_ordered_at == step - self._lag:
            self._save_ordered_at = None
        return word is not None and word.save > 0

    def ends_in_a_read(self, now_s: float) -> StopRequest | None:
        if self._request is None and (self._stop.pending or now_s >= self._stop.look_s):
            self._ask(now_s, self._meter.recent_step_time_s)
        if self._request is None and (first := self._ranks.first_of("stop", None)) is not None:  # another rank's
            return _request_of(first)
        return self._request

    def _ask(self, now_s: float, next_s: float) -> None:
        """Looks for a reason to stop, and tells it before any word about it: it is there when that is heard."""
        self._request = self._check(now_s, next_s)
        if self._request is not None:
            for key in ("stop",) if self._request.save else ("stop", "unsaved"):
                self._ranks.first_of(key, self._as_json(self._request))

    def _save_is_due(self, step: int, now_s: float) -> bool:
        if not self._ranks.leads or self._save_ordered_at is not None or now_s < self._checkpoints.due_s:
            return False
        self._save_ordered_at = step
        return True

    def _as_json(self, request: StopRequest) -> dict[str, Json]:
        where = f" on rank {self._ranks.rank} ({self._ranks.host})" if self._ranks.rank else ""
        note = None if request.note is None else request.note.to_dict()
        return {"kind": request.kind, "text": f"{request.text}{where}", "save": request.save, "note": note}


def _request_of(plain: Json) -> StopRequest:
    values = cast(dict[str, Json], plain)
    note = None if values["note"] is None else Note.from_dict(values["note"])
    return StopRequest(str(values["kind"]), str(values["text"]), bool(values["save"]), note)
