"""One part from beginning to end: rows in processes of their own, within the time there is; what is done stays done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.gpu_session import machine
from benchmarks.gpu_session.power import PowerLog
from benchmarks.gpu_session.rows import ATTEMPTS, FAILED, RowFile

GRACE_S = 20.0  # beyond the budget, for a row that is nearly done
POWER = "power_window_s"  # figure of a row: the time, by the monotonic clock, for which its power is wanted


class Session:
    """A part that runs now.

    Arguments:
        file: where its rows are kept. budget_s: no row is begun that would usually end after it, none runs GRACE_S longer.
        beside: rows that may run beside others, at most so many at once.
    """

    def __init__(self, file: RowFile, part: str, device: str, *, toy: bool, only: str, budget_s: float, beside: int):
        self.file, self.part, self.only, self.beside = file, part, only, beside
        self._asked = [part, device, *(["--toy"] if toy else [])]
        self._until_s = time.monotonic() + budget_s
        self._running: dict[int, dict[str, Any]] = {}
        self._count = 0

    def run(self) -> list[str]:
        """Runs what has no outcome yet. Returns the names of rows that the time was too short for."""
        self.file.add("session", part=self.part, machine=machine.state())
        with (
            tempfile.TemporaryDirectory(prefix="gpuwise-session-") as scratch,
            PowerLog() as self._power,
            self._serving(scratch),
        ):
            self._scratch = Path(scratch)
            rows = [row for row in self._heard()["rows"] if self.only in row["name"]]
            left = self._all(rows)
        return left

    def _all(self, rows: Sequence[dict[str, Any]]) -> list[str]:
        """Each row in its order, again where its process was killed; those that may run beside others do."""
        left: list[str] = []
        waiting = [row for row in rows if self.file.row(row["name"]) is None]
        while waiting or self._running:
            while waiting and self._may_begin(waiting[0]):
                row = waiting.pop(0)
                if self.file.attempts(row["name"]) >= ATTEMPTS:  # the session itself was killed with it
                    self._tell(row, outcome=FAILED, said="its process was killed twice", figures={})
                elif time.monotonic() + min(row["seconds"], row["limit_s"]) > self._until_s:
                    left.append(row["name"])
                else:
                    self._begin(row)
            if self._running:
                again = self._ended(self._heard())
                waiting = [*again, *waiting]
        return [*left, *[row["name"] for row in rows if self.file.row(row["name"]) is None and row["name"] not in left]]

    def _may_begin(self, row: dict[str, Any]) -> bool:
        if not self._running:
            return True
        alone = not row["parallel"] or not all(running["parallel"] for running in self._running.values())
        return not alone and len(self._running) < self.beside

    def _begin(self, row: dict[str, Any]) -> None:
        self._count += 1
        limit_s = max(1.0, min(row["limit_s"], self._until_s + GRACE_S - time.monotonic()))
        answer = self._scratch / f"{self._count}.json"
        self._ask(id=self._count, row=row["name"], answer=str(answer), limit_s=limit_s)
        self._running[self._count] = {**row, "answer": answer, "cut": limit_s < row["limit_s"]}

    def _ended(self, told: dict[str, Any]) -> list[dict[str, Any]]:
        """Keeps what became of a process. Returns its row where it is to be run again."""
        row = self._running[told["id"]]
        if "pid" in told:
            self.file.add("begun", row=row["name"], pid=told["pid"])
            return []
        del self._running[told["id"]]
        if row["answer"].exists():
            result = json.loads(row["answer"].read_text(encoding="utf-8"))
            window = result["figures"].pop(POWER, None)
            if window is not None:
                result["figures"]["power"] = self._power.between(*window)
            self._tell(row, **result)
            return []
        if told["timed_out"] and row["cut"]:
            self.file.add("left", row=row["name"])
            return []
        why = f"ran longer than {row['limit_s']:.0f} s" if told["timed_out"] else f"its process ended with code {told['code']}"
        if self.file.attempts(row["name"]) < ATTEMPTS:
            print(f"{row['name']}: {why}; once more", file=sys.stderr, flush=True)
            return [row]
        self._tell(row, outcome=FAILED, said=why, figures={})
        return []

    def _tell(self, row: dict[str, Any], **found: Any) -> None:
        self.file.add("row", row=row["name"], attempts=max(1, self.file.attempts(row["name"])), **found)
        text = f": {found['said'][:160]}" if found["said"] else ""
        print(f"{row['name']}: {found['outcome']}{text}", file=sys.stderr, flush=True)

    @contextmanager
    def _serving(self, scratch: str) -> Iterator[None]:
        """The server, with the calibration of this machine beside the rows and every cache in the scratch folder."""
        # The check asks the driver alone, so that CUDA does not begin in a process that is forked.
        environment = {
            **os.environ,
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            "GPUWISE_CONFIG_DIR": str(self.file.path.parent),
            "XDG_STATE_HOME": scratch,
            "XDG_CACHE_HOME": scratch,
        }
        command = [sys.executable, "-m", "benchmarks.gpu_session.server", *self._asked]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as server:
            self._server = server
            try:
                yield
            finally:
                assert server.stdin is not None
                server.stdin.close()
                server.wait()

    def _ask(self, **request: Any) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write((json.dumps(request) + "\n").encode())
        self._server.stdin.flush()

    def _heard(self) -> dict[str, Any]:
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        if not line:
            raise SystemExit("the process that starts the rows has ended; what it said stands above.")
        result: dict[str, Any] = json.loads(line)
        return result
