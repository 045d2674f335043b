"""One error tree. An error says what happened, why, and up to two ways out, and carries a code for machines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

EXIT_UNEXPECTED = 1  # of the command line: a fault of gpuwise itself, or of what it called
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
LONGEST_WORD = 200  # characters of a message without a blank; what is longer is cut in its middle
LONGEST_NAME = 100  # characters of a name that are compared with valid names


class GpuwiseError(Exception):
    """The base of all errors of gpuwise.

    Arguments:
        what: what happened and why, one or two sentences.
        ways_out: up to two things the user can do about it.

    `code` names the error for machines; `exit_code` is the exit code of the command line (2: the user's mistake).
    """

    code = "error"
    exit_code = 2

    def __init__(self, what: str, ways_out: Sequence[str] = ()):
        what = _shortened(what)
        super().__init__(what)
        self.what = what
        self.ways_out = tuple(_shortened(way) for way in ways_out[:2])
        self.position = ""  # file:line of the user's code that `what` ends in, where that is known

    def __str__(self) -> str:
        return "\n".join([self.what, *(f"  try: {way}" for way in self.ways_out)])

    def to_dict(self) -> dict[str, object]:
        return {"error": {"code": self.code, "message": self.what, "ways_out": list(self.ways_out)}}


def _shortened(text: str) -> str:
    """With long words cut: a user's argument of thousands of characters would hide the sentence about it."""
    half = LONGEST_WORD // 2
    return re.sub(rf"\S{{{LONGEST_WORD + 1},}}", lambda word: f"{word[0][:half]}...{word[0][-half // 4 :]}", text)


def shown(value: object) -> str:
    """A value in a message: its repr, or its type where it cannot be printed (a number of over 4,300 digits)."""
    try:
        return repr(value)
    except Exception:
        return f"a {type(value).__name__} that cannot be printed"


class InputError(GpuwiseError):
    """An invalid or senseless value (units, counts, filters, strategies)."""

    code = "bad-input"


class RunEndedError(InputError):
    """A run to continue that has already finished all of its steps.

    Attributes:
        folder: folder of the run.
        step: number of its steps.
    """

    def __init__(self, what: str, ways_out: Sequence[str] = (), *, folder: str = "", step: int = 0):
        super().__init__(what, ways_out)
        self.folder, self.step = folder, step


class UnknownNameError(GpuwiseError):
    """An unknown or ambiguous chip, preset, offer or provider."""

    code = "unknown-name"


class JobError(GpuwiseError):
    """A job that cannot be found, built or run."""

    code = "bad-job"


class StepFailedError(JobError):
    """A job whose step fails while it is recorded. problem: the cause and its position, without the job's name."""

    def __init__(self, what: str, ways_out: Sequence[str] = (), *, problem: str = ""):
        super().__init__(what, ways_out)
        self.problem = _shortened(problem)


class FileFormatError(GpuwiseError):
    """A trace, plan or catalog file that is damaged, foreign or of a newer version, or cannot be written.

    reason: of the system, where that refuses a file.
    """

    code = "bad-file"

    def __init__(self, what: str, ways_out: Sequence[str] = (), *, reason: str = ""):
        super().__init__(what, ways_out)
        self.reason = reason


class PriceListError(GpuwiseError):
    """A published price list that cannot be fetched or read, or whose rows or whole do not pass the gates."""

    code = "bad-price-list"


class DoesNotFitError(GpuwiseError):
    """No strategy fits the device's memory, or a run ran out of it."""

    code = "does-not-fit"


class NoPlanError(GpuwiseError):
    """Nothing satisfies budget and deadline."""

    code = "no-plan"


class NotSavedError(GpuwiseError):
    """The run has finished, but not every file could be written: the last checkpoint, the log or the report."""

    code = "not-saved"
    exit_code = 3


class RankLostError(GpuwiseError):
    """A rank of a run on several devices has ended without a word, does not answer, or cannot be reached."""

    code = "rank-lost"
    exit_code = 4


class OtherRankError(GpuwiseError):
    """What another rank of the run has failed with, which ends this one, too. Code and exit code are those of the cause."""

    def __init__(self, what: str, ways_out: Sequence[str] = (), *, code: str = "rank-lost", exit_code: int = 4):
        super().__init__(what, ways_out)
        self.code, self.exit_code = code, exit_code


class MissingDependencyError(GpuwiseError):
    """A required optional package is missing."""

    code = "missing-dependency"


class UnsupportedError(GpuwiseError):
    """A request that gpuwise does not support (yet), or that the device cannot run."""

    code = "unsupported"


class PrecisionError(UnsupportedError):
    """A job that fails in a precision but runs in fp32."""

    code = "precision-refused"


def message_of(error: BaseException) -> str:
    """The message of any exception on one line; empty if the exception fails to give one."""
    try:
        return " ".join(str(error).split())
    except Exception:
        return ""


# Names that other tools use for a setting of gpuwise.
OTHER_NAMES = {
    "batch_size": "micro_batch",
    "batch": "micro_batch",
    "bs": "micro_batch",
    "micro_batch_size": "micro_batch",
    "per_device_train_batch_size": "micro_batch",
    "gradient_accumulation_steps": "accumulate",
    "grad_accum": "accumulate",
    "accumulation": "accumulate",
    "gradient_checkpointing": "recompute",
    "activation_checkpointing": "recompute",
    "dtype": "precision",
    "sequence_length": "seq_len",
    "max_length": "seq_len",
    "device": "on",
    "gpu": "on",
    "max_steps": "steps",
    "num_epochs": "epochs",
    "cost": "budget",
}


def nearest(name: str, names: Sequence[str], *, most: int = 3) -> list[str]:
    """The valid names nearest to a misspelled one, best match first."""
    other = OTHER_NAMES.get(name.lower(), "")
    if other in names:
        return [other]
    return get_close_matches(name.lower()[:LONGEST_NAME], names, n=most, cutoff=0.6)


def unknown_name(kind: str, name: str, names: Sequence[str], *, listing: str) -> UnknownNameError:
    """An UnknownNameError that offers the nearest names.

    Arguments:
        kind: what the name should have been, e.g. "chip".
        names: all valid ones.
        listing: the command or the page that lists them, e.g. "gpuwise chips" or "docs/serving.md".
    """
    spelled = {one.lower(): one for one in names}
    near = [spelled[one] for one in get_close_matches(name.lower()[:LONGEST_NAME], list(spelled), n=3, cutoff=0.4)]
    near += [one for lower, one in spelled.items() if name.lower() in lower and one not in near][: 5 - len(near)]
    ways = [f"nearest: {', '.join(near)}"] if near else []
    ways.append(f"{listing} lists all" if listing.endswith(".md") else f"list all with `{listing}`")
    return UnknownNameError(f"unknown {kind} {name!r}.", ways)
