"""start: `gpuwise train` and `validate` as launchers of their own ranks, under PyTorch's elastic agent."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import FrameType

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from gpuwise.errors import RankLostError
from gpuwise.hardware.detect.ranks import launched_variables
from gpuwise.runs.attempt import note_failure
from gpuwise.runtime.interruption.signals import STOP_SIGNALS
from gpuwise.runtime.ranks.last_words import LastWords
from gpuwise.runtime.ranks.pulse import GRACE_S
from gpuwise.runtime.ranks.ranks import Ranks

HOST = "127.0.0.1"
MONITOR_S = 0.1  # between two looks of the agent at its processes
SHUTDOWN_S = 10  # from SIGTERM to SIGKILL for ranks that outlive another's failure
ALL_ENDED_S = 3 * GRACE_S  # from a failure until ranks that have not ended by themselves are killed
# Exit codes of a rank that has printed the reason itself: interrupted and saved, not all written, a user's mistake.
EXPLAINED = (130, 3, 2)
_HANDLED = "TORCHELASTIC_SIGNALS_TO_HANDLE"


def start_ranks(
    arguments: Sequence[str],
    *,
    ranks: int,
    threads: int,
    max_restarts: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> int:
    """Runs Python with these arguments as so many ranks on this machine, which meet on 127.0.0.1. Returns its exit code.

    Stop signals are passed on, so that the ranks end saved. Once a rank is lost, all of them are started again, at most
    `max_restarts` times; other failures end the run.

    Arguments:
        threads: of each rank, unless OMP_NUM_THREADS says otherwise.
        say: tells the user of a restart.

    Raises OtherRankError with the first failure of a rank.
    """
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # one message is left to the words of the ranks
    variables = {
        _HANDLED: "SIGQUIT",  # the agent would end the ranks at once; ours lets them save
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),  # gloo warns of every peer that has gone
        **launched_variables(),
    }
    with _environment(variables), tempfile.TemporaryDirectory() as folder:
        rendezvous = _OneMachine()
        spec = WorkerSpec(
            role="gpuwise",
            local_world_size=ranks,
            rdzv_handler=rendezvous,
            entrypoint=sys.executable,
            args=tuple(arguments),
            max_restarts=max_restarts,
            monitor_interval=MONITOR_S,
        )
        agent = _Agent(spec, rendezvous.store, DefaultLogsSpecs(log_dir=folder), say)
        with _PassedOn(agent):
            result = agent.run()
    if (words := agent.words()) is not None:
        agent.note(words)
        raise words.error()
    return _exit_code(result)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """The environment of the ranks. What this process forecasts afterwards does not have their number of threads."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class _OneMachine(RendezvousHandler):
    """The meeting of one machine's ranks: a store that listens on 127.0.0.1 alone, and nobody to wait for."""

    def __init__(self) -> None:
        listener = socket.socket()
        listener.bind((HOST, 0))
        listener.listen(1024)
        self._port = listener.getsockname()[1]
        self.store = TCPStore(
            HOST,
            self._port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
            timeout=timedelta(seconds=60),
        )

    def get_backend(self) -> str:
        return "one-machine"

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        return RendezvousInfo(PrefixStore("agent", self.store), 0, 1, RendezvousStoreInfo(HOST, self._port))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return "gpuwise"

    def shutdown(self) -> bool:
        return True


class _Agent(LocalElasticAgent):
    """PyTorch's agent. It leaves last words for ranks that were killed, and restarts after losses alone."""

    def __init__(self, spec: WorkerSpec, store: TCPStore, logs: DefaultLogsSpecs, say: Callable[[str], None]):
        super().__init__(spec, logs, shutdown_timeout=SHUTDOWN_S)
        self._of_ranks, self._say, self._spec = store, say, spec
        self.ending = False
        self._failed_s: float | None = None

    def words(self) -> LastWords | None:
        """The first last words of the ranks of this attempt."""
        return self._ranks().failure()

    def note(self, words: LastWords) -> None:
        """Notes a failure in the state of the run, where rank 0 could not do so itself."""
        folder = Ranks(first_start=PrefixStore("gpuwise/all/0", self._of_ranks)).lasting("folder", lambda: None)
        if isinstance(folder, str):
            note_failure(Path(folder), words.error(), unless_noted=True)

    def pids(self) -> list[int]:
        return [worker.id for worker in self.get_worker_group().workers if isinstance(worker.id, int)]

    def _ranks(self) -> Ranks:
        attempt = self._spec.max_restarts - self._remaining_restarts
        store = PrefixStore(f"gpuwise/{attempt}/0", self._of_ranks)
        return Ranks(-1, self._spec.local_world_size, store=store, host=socket.gethostname())

    def _end_failed(self) -> None:
        """Kills a rank that does not answer at once, and the others when they have had time to end by themselves.

        PyTorch's agent waits 30 s for ranks that SIGTERM does not end, one that was stopped for instance.
        """
        if (words := self.words()) is None:
            self._failed_s = None
            return
        now_s = time.monotonic()
        if self._failed_s is None:
            self._failed_s = now_s
            if words.code == RankLostError.code:
                self._kill([worker.id for worker in self.get_worker_group().workers if worker.global_rank == words.rank])
        elif now_s - self._failed_s > ALL_ENDED_S:
            self._kill(self.pids())

    def _kill(self, pids: Sequence[object]) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                if isinstance(pid, int):
                    os.kill(pid, signal.SIGKILL)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._end_failed()
        result = super()._monitor_workers(worker_group)
        if result.state != WorkerState.FAILED:
            return result
        words = self.words()
        if words is None and (lost := _lost(result.failures)) is not None:
            words = self._ranks().leave(lost)
        if self.ending or words is None or not words.lost:
            self._remaining_restarts, self._spec.max_restarts = 0, self._spec.max_restarts - self._remaining_restarts
        elif self._remaining_restarts:
            number = self._spec.max_restarts - self._remaining_restarts + 1
            self._say(f"{words.error().what} The ranks start again: restart {number} of {self._spec.max_restarts}.")
        return result


class _PassedOn:
    """A context that passes stop signals on to the ranks. A second one ends them at once, as it ends a single process."""

    def __init__(self, agent: _Agent):
        self._agent = agent
        self._before: dict[int, object] = {}

    def __enter__(self) -> _PassedOn:
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._on)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # as `signal.signal` has returned it
        self._before.clear()

    def _on(self, number: int, frame: FrameType | None) -> None:
        self._agent.ending = True
        for pid in self._agent.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _first(failures: dict[int, ProcessFailure]) -> tuple[int, ProcessFailure]:
    """The failure that has ended the others, and its rank.

    The agent has ended the others by SIGTERM when it tells. Killed ranks come first: others may have failed for lack of them.
    """
    return min(failures.items(), key=lambda item: (item[1].exitcode == -signal.SIGTERM, item[1].exitcode > 0, item[0]))


def _lost(failures: dict[int, ProcessFailure]) -> LastWords | None:
    """Last words of a rank that ended without any; None for one that has printed the reason."""
    if not failures:
        return None
    rank, failure = _first(failures)
    if failure.exitcode in EXPLAINED:
        return None
    host = socket.gethostname()
    how = f"was killed by {failure.signal_name()}" if failure.exitcode < 0 else f"ended with exit code {failure.exitcode}"
    why = "; the system does that when memory runs out" if failure.signal_name() == "SIGKILL" else ""
    error = RankLostError(
        f"rank {rank} on {host} (pid {failure.pid}) {how}{why}.",
        ["start again: the run goes on from its last checkpoint", "--max-restarts 3 does that by itself"],
    )
    return LastWords.of(error, rank=rank, host=host)


def _exit_code(result: RunResult) -> int:
    return _first(result.failures)[1].exitcode if result.failures else 0
