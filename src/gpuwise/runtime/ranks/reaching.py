"""open_store: a connection to the store in which ranks meet, or an error that says why there is none."""

from __future__ import annotations

import socket
import struct
import time
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import TCPStore

from gpuwise.errors import InputError, OtherRankError, RankLostError
from gpuwise.hardware.detect.ranks import RankEnvironment

CONNECT_S = 45.0  # until a store that does not answer counts as unreachable
_STORE_S = 20.0  # of one request to the store
_PROBE_S = 5.0
# The first bytes of a client, and a ping, to which the store answers with the same number: QueryType and
# validationMagicNumber in torch/csrc/distributed/c10d/TCPStoreBackend.hpp (PyTorch 2.3 to 2.13).
_VALIDATE, _MAGIC, _PING, _NUMBER = 0, 0x3C85F7CE, 13, 0x67707577

_stores: dict[tuple[str, int], TCPStore] = {}  # a process that trains twice meets the others in the same store


def open_store(environment: RankEnvironment) -> TCPStore:
    """A connection to the store of the ranks, which rank 0 opens where the launcher has none.

    Raises InputError when rank 0's port is taken; RankLostError, and OtherRankError on all but the first rank of a machine,
    when the store does not answer.
    """
    address = environment.address, environment.port
    if address in _stores:
        return _stores[address]
    keeps = environment.rank == 0 and not environment.hosted_by_agent
    if not keeps:
        _wait_for_answer(environment)
    try:
        store = TCPStore(*address, is_master=keeps, wait_for_workers=False, timeout=timedelta(seconds=_STORE_S))
    except (dist.DistError, RuntimeError) as error:
        if keeps and "address already in use" in str(error).lower():
            raise InputError(
                f"port {environment.port} of {environment.address}, where the ranks are to meet, is in use.",
                ["set MASTER_PORT to a free port on all ranks"],
            ) from error
        raise _unreachable(environment, str(error).splitlines()[0], waited_s=_STORE_S) from error
    _stores[address] = store
    return store


def _wait_for_answer(environment: RankEnvironment) -> None:
    """Waits until the store answers a ping.

    PyTorch's own attempts would each print a warning, and wait for ever for a process that accepts connections and is stopped.
    """
    until_s = time.monotonic() + CONNECT_S
    while True:
        try:
            _ping(environment.address, environment.port)
            return
        except OSError as error:
            if time.monotonic() > until_s:
                raise _unreachable(environment, error.strerror or str(error), waited_s=CONNECT_S) from error
        time.sleep(0.2)


def _ping(host: str, port: int) -> None:
    """Raises OSError unless a store of PyTorch answers there."""
    with socket.create_connection((host, port), timeout=_PROBE_S) as connection:
        connection.sendall(struct.pack("=BIBI", _VALIDATE, _MAGIC, _PING, _NUMBER))
        try:
            answer = connection.recv(4)
        except TimeoutError as error:
            raise TimeoutError("it accepts connections and does not answer") from error
    if answer != struct.pack("=I", _NUMBER):
        raise ConnectionError("what answers there is no store of PyTorch")


def _unreachable(environment: RankEnvironment, why: str, *, waited_s: float) -> RankLostError | OtherRankError:
    """Of the ranks of a machine, the first says it for all."""
    own = environment.rank == 0 and not environment.hosted_by_agent
    keeper = "its launcher" if environment.hosted_by_agent else "its own store" if own else "rank 0"
    what = (
        f"rank {environment.rank} of {environment.size} on {socket.gethostname()} cannot reach {keeper} at "
        f"{environment.address}:{environment.port} ({why}), for {waited_s:g} s."
    )
    ways = [
        "check that rank 0 runs, and that its host lets other machines connect to that port",
        "set MASTER_ADDR and MASTER_PORT to the host of rank 0 and a free port",
    ]
    ways = ways[1:] if own else ways
    return OtherRankError(what, ways) if environment.local_rank else RankLostError(what, ways)
