"""join: this process takes its position among the ranks that a launcher has started."""

from __future__ import annotations

import itertools
import os
import socket
import sys
from contextlib import suppress
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store

from gpuwise.errors import GpuwiseError, RankLostError, UnsupportedError
from gpuwise.hardware.detect.ranks import RankEnvironment
from gpuwise.runtime.devices import backend_of
from gpuwise.runtime.ranks.last_words import LastWords
from gpuwise.runtime.ranks.ranks import Ranks
from gpuwise.runtime.ranks.reaching import open_store
from gpuwise.runtime.ranks.run_ranks import RunRanks

JOIN_S = 600.0  # until ranks that have not started count as lost: machines of a cluster do not start at once
REACH_S = 45.0  # until ranks that reach the store, but not each other, count as lost: every rank ends within a minute
# Of a collective. The watch of runtime.ranks.pulse notices lost ranks much earlier; a slow one may take its time.
COLLECTIVE_S = 3600.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")

_runs = itertools.count()


def join(environment: RankEnvironment, device: torch.device) -> RunRanks:
    """The ranks of a run, all there.

    Their `connect` initialises torch.distributed: gloo for the CPU, the library of an accelerator (NCCL, RCCL, oneCCL) beside
    it. A process group that the caller has initialised is used as it is, and stays.

    Raises RankLostError when the store cannot be reached or ranks do not come, InputError when its port is taken. `connect`
    raises RankLostError for ranks that do not reach each other, UnsupportedError for accelerators without collectives.
    """
    own_group = not dist.is_initialized()
    # The store of a caller's group is private in PyTorch 2.13, and the only one that all of its ranks share.
    store: Store = open_store(environment) if own_group else dist.distributed_c10d._get_default_store()
    number = next(_runs)
    prefix = f"gpuwise/{environment.attempt}/{number}"
    ranks = Ranks(
        environment.rank,
        environment.size,
        store=PrefixStore(prefix, store),
        host=socket.gethostname(),
        first_start=PrefixStore(f"gpuwise/all/{number}", store),
        core_share=1 if environment.own_cores else environment.local_size,
    )
    initialise = partial(_initialise, environment, device, PrefixStore(f"{prefix}/torch", store))
    run_ranks = RunRanks(ranks, initialise=initialise if own_group else None).start()
    with run_ranks.speaking():
        ranks.hosts[:] = map(str, ranks.gathered("join", ranks.host, within_s=JOIN_S))
    return run_ranks


def leave_words(environment: RankEnvironment, words: LastWords) -> bool:
    """Leaves the last words of a rank that failed before it has joined the others. Returns whether the launcher hears them."""
    with suppress(GpuwiseError, RuntimeError):
        store = PrefixStore(f"gpuwise/{environment.attempt}/0", open_store(environment))
        Ranks(environment.rank, environment.size, store=store).leave(words)
        return True
    return environment.local_rank > 0  # of the ranks of a machine, the first says it for all


def _initialise(environment: RankEnvironment, device: torch.device, store: Store) -> None:
    backend = "gloo"
    if device.type != "cpu":
        collectives = backend_of(device).collectives
        if collectives is None:
            raise UnsupportedError(
                f"PyTorch has no collectives between devices of type {device.type}, which ranks need.",
                ["one process: leave out --mesh"],
            )
        backend = f"cpu:gloo,{device.type}:{collectives}"
    if environment.address in _LOOPBACK:  # else gloo asks for the address of the host's name, which may be another
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    try:
        dist.init_process_group(  # gloo connects all ranks at once
            backend,
            store=store,
            rank=environment.rank,
            world_size=environment.size,
            timeout=timedelta(seconds=REACH_S),
            device_id=None if device.type == "cpu" else device,
        )
    except RuntimeError as error:  # DistStoreError and DistNetworkError are
        raise RankLostError(
            f"rank {environment.rank} on {socket.gethostname()} reaches the store of the run at {environment.address}, but not "
            f"all other ranks ({str(error).splitlines()[0][:200]}).",
            [
                "GLOO_SOCKET_IFNAME=NAME, the network that the machines share (ip addr lists them)",
                "open the ports between them",
            ],
        ) from None  # it is this rank's own error, not one that another rank has made
    # The public way to another timeout is another group.
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=COLLECTIVE_S))
