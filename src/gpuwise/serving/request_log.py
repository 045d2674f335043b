"""RequestLog: requests that really came, read from a CSV or JSONL file: when, and how many tokens each read and wrote.

Columns are known by name, as published traces write them (upper and lower case, blanks and underscores are alike):

- Azure/AzurePublicDataset: TIMESTAMP (date and time), ContextTokens, GeneratedTokens
- HPMLL/BurstGPT: Timestamp (seconds), Request tokens, Response tokens; 0 response tokens are a request that failed
- kvcache-ai/Mooncake: timestamp (milliseconds beside hash_ids), input_length, output_length
- microsoft/vidur: arrived_at, num_prefill_tokens, num_decode_tokens
"""

from __future__ import annotations

import csv
import io
import os
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import FileFormatError, shown
from gpuwise.plain_files import LARGEST_WHOLE, open_regular, parse_json, reason_of

LIMIT_BYTES = 256 * 2**20
MOST_TOKENS = 10_000_000  # of one request; no model reads as many
MOST_UNREAD, LONGEST_NAME = 20, 60  # names of columns that are not read, and their characters
LATEST_S = 1e11  # a number above is not of seconds
TIME, TIME_MS, INPUT, OUTPUT = "arrival", "arrival in milliseconds", "tokens read", "tokens written"
NAMES = {
    TIME: ("timestamp", "timestamps", "arrival", "arrivals", "arrivaltime", "arrivedat", "time", "times"),
    TIME_MS: ("timestampms", "arrivalms", "arrivaltimems", "timems"),
    INPUT: ("inputtokens", "prompttokens", "contexttokens", "requesttokens", "inputlength", "numprefilltokens"),
    OUTPUT: ("outputtokens", "completiontokens", "generatedtokens", "responsetokens", "outputlength", "numdecodetokens"),
}
EXAMPLE = "columns such as timestamp, input_tokens, output_tokens (docs/serving-load.md lists the names)"


@dataclass(frozen=True)
class RequestLog:
    """Requests in the order of their arrival.

    Attributes:
        name: of the file.
        arrival_s: seconds since the first one.
        input_tokens, output_tokens: of each, at least 1.
        failed: requests without tokens, which are left out.
        unread: columns that are not read, the first MOST_UNREAD of them.
        first_s: of the first request, seconds since midnight; 0 where times are plain seconds.
    """

    name: str
    arrival_s: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    failed: int = 0
    unread: tuple[str, ...] = ()
    first_s: float = 0.0

    @property
    def span_s(self) -> float:
        """From the first arrival to the last."""
        return float(self.arrival_s[-1])

    @property
    def rate_per_s(self) -> float:
        """Mean requests a second."""
        return (len(self.arrival_s) - 1) / self.span_s


def read_log(path: str | os.PathLike[str], *, timed: bool = True) -> RequestLog:
    """The requests of a file. Raises FileFormatError, which names the file, the line, and what is wrong with it.

    timed: whether arrivals are read. If False, none are needed, and requests are in the order of the file, a second apart.
    """
    target = Path(path)
    try:
        with open_regular(target) as file:
            size = os.fstat(file.fileno()).st_size
            if size > LIMIT_BYTES:
                raise FileFormatError(
                    f"{target} has {size / 2**20:,.0f} MiB; at most {LIMIT_BYTES // 2**20} are read.",
                    [f"a part of it: head -n 1000000 {target.name} > part{target.suffix}"],
                )
            text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
            return _Reader(target, text, timed=timed).log()
    except OSError as error:
        raise FileFormatError(
            f"cannot read {target}: {reason_of(error)}.", ["name a file that can be read: --trace FILE"]
        ) from None
    except UnicodeDecodeError:
        raise FileFormatError(f"{target} is no text in UTF-8.", ["unpack it first, where it is packed"]) from None


class _Reader:
    """Reads one file."""

    def __init__(self, path: Path, text: io.TextIOWrapper, *, timed: bool) -> None:
        self._timed = timed
        self._path, self._text, self._line = path, text, 0
        self._columns: tuple[str, ...] = ()
        self._scale, self._is_date = 1.0, False

    def log(self) -> RequestLog:
        seconds, read, written, failed = array("d"), array("q"), array("q"), 0
        lines = self._objects() if self._begins_with("{") else self._cells()
        for *time, tokens_read, tokens_written in lines:
            inputs, outputs = self._tokens(tokens_read), self._tokens(tokens_written)
            at_s = self._seconds(*time) if self._timed else float(len(seconds))
            if inputs and outputs:
                seconds.append(at_s)
                read.append(inputs)
                written.append(outputs)
            else:
                failed += 1
        at = np.array(seconds)
        if self._timed and (len(at) < 2 or at.min() == at.max()):
            raise FileFormatError(
                f"{self._path} has {len(at):,} requests with tokens; a load has at least two, which come at different times.",
                [EXAMPLE],
            )
        if not len(at):
            raise FileFormatError(f"{self._path} has no request with tokens.", [EXAMPLE])
        order = np.argsort(at, kind="stable")
        unread = tuple(_printable(name) for name in self._columns if not _role(name))[:MOST_UNREAD]
        first_s = float(at.min() % 86_400) if self._is_date else 0.0
        return RequestLog(
            self._path.name, at[order] - at.min(), np.array(read)[order], np.array(written)[order], failed, unread, first_s
        )

    def _begins_with(self, character: str) -> bool:
        """Whether the first line that is not empty does; the file is read from its beginning afterwards."""
        first = next((line.lstrip() for line in self._text if line.strip()), "")
        if not first:
            raise FileFormatError(f"{self._path} is empty.", [EXAMPLE])
        self._text.seek(0)
        return first.startswith(character)

    def _cells(self) -> Iterator[Sequence[object]]:
        """Time and tokens of each line of a CSV file."""
        rows = csv.reader(self._text, strict=True)
        try:
            header: list[str] = []
            indices: list[int] = []
            for row in rows:
                self._line = rows.line_num
                if not any(cell.strip() for cell in row):
                    continue
                if not header:
                    header = row
                    indices = [header.index(name) for name in self._named(header)]
                elif len(row) != len(header):
                    raise self._wrong(f"it has {len(row)} columns, and the header {len(header)}")
                else:
                    yield [row[index] for index in indices]
        except csv.Error as error:
            self._line = rows.line_num
            raise self._wrong(str(error)) from None

    def _objects(self) -> Iterator[Sequence[object]]:
        """Time and tokens of each line of a JSONL file."""
        names: list[str] = []
        for number, line in enumerate(self._text, start=1):
            self._line = number
            if not line.strip():
                continue
            try:
                row = parse_json(line)
            except ValueError as error:
                raise self._wrong(f"it is no JSON ({error})") from None
            if not isinstance(row, Mapping):
                raise self._wrong("it is no JSON object")
            names = names or self._named([str(name) for name in row])
            if missing := [name for name in names if name not in row]:
                raise self._wrong(f"it has no {missing[0]!r}")
            yield [row[name] for name in names]

    def _named(self, columns: Sequence[str]) -> list[str]:
        """The columns of time, tokens read and tokens written."""
        self._columns = tuple(column.strip() for column in columns)
        by_role: dict[str, list[str]] = {}
        for column in columns:
            by_role.setdefault(_role(column), []).append(column)
        times = [*by_role.get(TIME, ()), *by_role.get(TIME_MS, ())]
        in_milliseconds = not by_role.get(TIME) or any(_plain(name) == "hashids" for name in columns)
        self._scale = 1e-3 if in_milliseconds else 1.0
        names: list[str] = []
        of_times = ((TIME, times),) if self._timed else ()
        for role, candidates in (*of_times, (INPUT, by_role.get(INPUT, [])), (OUTPUT, by_role.get(OUTPUT, []))):
            if len(candidates) != 1:
                what = f"both {candidates[0]!r} and {candidates[1]!r} are" if candidates else "no column is"
                raise self._wrong(f"{what} the {role}, of {', '.join(map(repr, self._columns[:12]))}")
            names += candidates
        return names

    def _seconds(self, value: object) -> float:
        number = _number(value)
        if number is not None:
            if abs(number * self._scale) > LATEST_S:
                raise self._wrong(
                    f"{shown(value)} is too large for seconds; call the column timestamp_ms if it has milliseconds"
                )
            return number * self._scale
        try:
            moment = datetime.fromisoformat(str(value).strip())
        except ValueError:
            raise self._wrong(f"{shown(value)} is neither seconds nor a date and time") from None
        self._is_date = True
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()

    def _tokens(self, value: object) -> int:
        number = _number(value)
        if number is None or number != int(number) or not 0 <= number <= MOST_TOKENS:
            raise self._wrong(f"{shown(value)} is no number of tokens")
        return int(number)

    def _wrong(self, what: str) -> FileFormatError:
        return FileFormatError(f"{self._path}:{self._line}: {what}.", [EXAMPLE, "remove or mend that line"])


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _printable(name: str) -> str:
    """A column's name as it may stand in a sentence."""
    return (name if name.isprintable() else repr(name))[:LONGEST_NAME]


def _role(column: str) -> str:
    """What a column has; "" where its name says nothing."""
    return next((role for role, names in NAMES.items() if _plain(column) in names), "")


def _number(value: object) -> float | None:
    """A finite number, also written as text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, int) and abs(value) > LARGEST_WHOLE:
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if isfinite(number) else None
