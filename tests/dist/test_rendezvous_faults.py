"""The store that ranks meet in cannot be reached, or ranks that meet there are of different runs."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from launched import JOB, errors_of, free_port, start_rank
from torch.distributed import TCPStore

from gpuwise.errors import OtherRankError, RankLostError
from gpuwise.hardware.detect.ranks import RankEnvironment
from gpuwise.runtime.ranks import reaching
from gpuwise.runtime.ranks.reaching import open_store


def environment(port: int, *, rank: int = 1, local_rank: int = 0, address: str = "127.0.0.1") -> RankEnvironment:
    return RankEnvironment(rank, 4, local_rank, 2, address, port, "environment")


@contextmanager
def listening(answer: bytes | None) -> Iterator[int]:
    """A port that accepts connections, and answers each with these bytes; None: not at all."""
    connections: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                connections.append(listener.accept()[0])
            except OSError:
                return
            if answer is not None:
                connections[-1].sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)
    for connection in connections:
        connection.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaching, "CONNECT_S", 0.0)
    monkeypatch.setattr(reaching, "_PROBE_S", 0.2)


@pytest.mark.parametrize("libuv", [True, False])
def test_a_store_that_answers_is_used(libuv: bool):
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=libuv)
    store = open_store(environment(server.port))
    server.set("word", "given")
    assert store.get("word") == b"given"
    assert open_store(environment(server.port)) is store


def test_a_port_where_nothing_listens():
    with pytest.raises(RankLostError, match=r"rank 1 of 4 on .* cannot reach rank 0 at 127.0.0.1:\d+ \(Connection refused\)"):
        open_store(environment(free_port()))


def test_a_host_that_does_not_exist():
    with pytest.raises(RankLostError, match=r"cannot reach rank 0 at no-such-host.invalid"):
        open_store(environment(29500, address="no-such-host.invalid"))


@pytest.mark.parametrize(
    ("answer", "words"), [(None, "accepts connections and does not answer"), (b"HTTP/1.1 400", "is no store of PyTorch")]
)
def test_a_port_that_is_something_elses(answer: bytes | None, words: str):
    with listening(answer) as port, pytest.raises(RankLostError, match=words):
        open_store(environment(port))


def test_one_rank_of_a_machine_says_it():
    with pytest.raises(OtherRankError, match="rank 3 of 4"):
        open_store(environment(free_port(), rank=3, local_rank=1))


@pytest.mark.slow
def test_ranks_with_other_code_are_refused_with_one_message(tmp_path: Path):
    port, processes = free_port(), []
    for rank in range(2):
        folder = tmp_path / str(rank)
        folder.mkdir()
        (folder / "small.py").write_text(f"{JOB}\n# on machine {rank}\n")
        processes.append(start_rank(rank, folder, port=port))
    (error,) = [error for process in processes for error in errors_of(process)]
    assert "rank 1 on " in error
    assert "has another code in small.py (its checksum) than rank 0 on " in error
    assert [process.returncode for process in processes] == [2, 2]
    assert not list(tmp_path.glob("*/run"))


@pytest.mark.slow
def test_a_launcher_without_a_rank_0_is_reported_once(tmp_path: Path):
    process = start_rank(1, tmp_path, port=free_port())
    (error,) = errors_of(process)
    assert "rank 1 of 2 on " in error
    assert "for 45 s" in error
    assert process.returncode == 4
