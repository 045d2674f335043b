"""Runs a function on several ranks, each in a process of its own, over gloo on 127.0.0.1.

The processes are forked from a server that has imported PyTorch once and run nothing, so that they begin within milliseconds.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from typing import Any

TIMEOUT_S = 240.0
AFTER_A_FAILURE_S = 5.0  # other ranks end by themselves in this time, or are killed
_OF_PEERS = ("closed by peer", "Connection reset", "Broken pipe", "Timed out waiting")


class RankError(AssertionError):
    """A rank failed: the traceback of the first one that did so by itself."""


def on_ranks(ranks: int, function: Callable[..., Any], *arguments: Any, timeout_s: float = TIMEOUT_S) -> list[Any]:
    """Calls function(*arguments) on each of these ranks, with torch.distributed initialised. Returns their results by rank.

    Arguments:
        ranks: number of processes.
        function: of a module, not of a class or another function; it and its arguments and results are pickled.
        arguments: its arguments.
        timeout_s: after which the processes are killed.

    Raises RankError with the traceback of the rank that failed first, or when the time is over.
    """
    processes, pipes = [], []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(ranks):
            ours, theirs = _server().Pipe(duplex=False)
            process = _server().Process(target=_rank, args=(theirs, rank, ranks, f"{folder}/store", function, arguments))
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        try:
            return _results(pipes, timeout_s)
        finally:
            for process in processes:
                process.join(0.5)
                if process.is_alive():
                    process.kill()
                    process.join()


@cache
def _server() -> ForkServerContext:
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["gpuwise.runtime.build.program", "torch.distributed.fsdp", "torch.distributed.tensor"])
    return server


def _rank(pipe: Connection, rank: int, ranks: int, store: str, function: Callable[..., Any], arguments: Any) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ["GPUWISE_NO_CACHE"] = "1"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        timeout = timedelta(seconds=60)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=timeout)
        result = function(*arguments)
        dist.barrier()
        pipe.send((True, result))
    except BaseException:  # whatever it is, the test shows it
        pipe.send((False, traceback.format_exc()))
    finally:
        pipe.close()
        os._exit(0)  # without waiting for other ranks


def _results(pipes: list[Connection], timeout_s: float) -> list[Any]:
    results: dict[int, Any] = {}
    failures: list[tuple[int, str]] = []
    ends_s = time.monotonic() + timeout_s
    open_pipes = dict(zip(pipes, range(len(pipes)), strict=True))
    while open_pipes and (left_s := ends_s - time.monotonic()) > 0:
        for pipe in wait(list(open_pipes), left_s):
            assert isinstance(pipe, Connection)
            rank = open_pipes.pop(pipe)
            try:
                succeeded, result = pipe.recv()
            except EOFError:
                succeeded, result = False, "the process ended without a word"
            if succeeded:
                results[rank] = result
            else:
                failures.append((rank, result))
                ends_s = min(ends_s, time.monotonic() + AFTER_A_FAILURE_S)
    if failures:
        own = [failure for failure in failures if not any(words in failure[1] for words in _OF_PEERS)]
        rank, text = (own or failures)[0]
        raise RankError(f"rank {rank} of {len(pipes)} failed:\n{text}")
    if open_pipes:
        raise RankError(f"ranks {sorted(open_pipes.values())} of {len(pipes)} did not end within {timeout_s:.0f} s")
    return [results[rank] for rank in range(len(pipes))]
