"""The rows of a part, and the file they are kept in."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpuwise.atomic import written_whole

ATTEMPTS = 2  # of a row whose process is killed; then it has failed
MEASURED, OUT_OF_MEMORY, WRONG, FAILED, SKIPPED = "measured", "out of memory", "wrong", "failed", "skipped"
OUTCOMES = (MEASURED, OUT_OF_MEMORY, WRONG, FAILED, SKIPPED)


class NotHereError(Exception):
    """The row needs what this machine or device does not have."""


@dataclass(frozen=True)
class Row:
    """One measurement, made in a process of its own.

    name: "kind/configuration", unique in its part. run: returns the figures, plain values; AssertionError says that
    something is wrong, NotHereError and MissingDependencyError that what it needs is not there.
    parallel: may run beside other such rows, as forecasts may. seconds: what it usually takes on a GPU. limit_s: after which
    it is ended.
    """

    name: str
    run: Callable[[], Mapping[str, Any]]
    parallel: bool = False
    seconds: float = 10.0
    limit_s: float = 90.0


class RowFile:
    """Records of one part, a JSON object a line. The file is replaced as a whole, so that it is never half written.

    Records: "session" (the machine, each time the part is begun), "begun" (a row, each time its process is started), "left"
    (the time was up: that start does not count) and "row" (its outcome and figures).
    """

    def __init__(self, path: Path):
        self.path = path
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        self.records: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]

    def add(self, record: str, **values: Any) -> None:
        self.records.append({"record": record, "date": datetime.now(UTC).isoformat(timespec="milliseconds"), **values})
        with written_whole(self.path) as file:
            file.write("".join(json.dumps(each) + "\n" for each in self.records).encode())

    def rows(self) -> Iterator[dict[str, Any]]:
        """Those with an outcome, in the order they got it."""
        return (record for record in self.records if record["record"] == "row")

    def row(self, name: str) -> dict[str, Any] | None:
        return next((record for record in self.rows() if record["row"] == name), None)

    def figures(self, name: str) -> dict[str, Any] | None:
        """Of a row that was measured; None of any other."""
        result = self.row(name)
        return result["figures"] if result is not None and result["outcome"] == MEASURED else None

    def attempts(self, name: str) -> int:
        """How often the row's process was started and ended without an outcome."""
        counts = {"begun": 1, "left": -1}
        return sum(counts.get(record["record"], 0) for record in self.records if record.get("row") == name)

    def configurations(self, kind: str) -> list[str]:
        """Names behind "kind/", in the order of the file."""
        return [record["row"].partition("/")[2] for record in self.rows() if record["row"].startswith(f"{kind}/")]
