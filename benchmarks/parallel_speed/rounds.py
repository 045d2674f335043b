"""Rounds: every contestant once, in an order that turns, its ranks in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import socket
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

TIMEOUT_S = 300.0
IN_TURNS = "gpuwise and the loop by hand"
WITHOUT_EXCHANGE = "gpuwise without the collective of each step, and the loop by hand"
PRELOADED = "benchmarks.parallel_speed.preloaded"
SIZES = {  # width, layers, vocabulary, seq_len, micro_batch, warm, timed
    "tiny": (64, 4, 256, 32, 4, 10, 60),
    "small": (192, 6, 2048, 128, 2, 4, 15),
}


def measured(row: str, ranks: int, size: str, *, rounds: int) -> dict[str, Any]:
    """Seconds of a step of each contestant in each round, and of the steps in turns, with and without the exchange of ranks."""
    from benchmarks.parallel_speed.contestants import contestants

    names = list(contestants(ranks)[row])
    load, seconds, turns, without = [os.getloadavg()[0]], [], [], []
    for number in range(rounds):
        first = number % len(names)
        turn = {name: run(row, name, ranks, size)["step_s"] for name in (*names[first:], *names[:first])}
        seconds.append({name: turn[name] for name in names})
        turns.append(run(row, IN_TURNS, ranks, size)["turns"])
        without.append(run(row, WITHOUT_EXCHANGE, ranks, size)["turns"])
    load.append(os.getloadavg()[0])
    return {
        "row": row,
        "ranks": ranks,
        "size": size,
        "step_s": seconds,
        "in_turns": turns,
        "without_exchange": without,
        "load": load,
    }


def run(row: str, name: str, ranks: int, size: str) -> dict[str, Any]:
    """What rank 0 of a contestant measured.

    Either step_s, the seconds of a step, or turns, those of each step by name (IN_TURNS, WITHOUT_EXCHANGE).

    Raises RuntimeError with the traceback of a rank that fails.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOADED])
    pipes: list[Connection] = []
    processes = []
    with tempfile.TemporaryDirectory() as folder, socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        reserved.close()
        for rank in range(ranks):
            ours, theirs = context.Pipe(duplex=False)
            environment = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "NODE_RANK": "0",
                "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
                "ACCELERATE_USE_CPU": "true",
                "GPUWISE_BENCHMARK_FOLDER": f"{folder}/run",
            }
            process = context.Process(target=one_rank, args=(theirs, environment, row, name, ranks, size))
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        try:
            return _answers(pipes, f"{name} ({row}, {ranks} ranks)")
        finally:
            for process in processes:
                process.join(5.0)
                if process.is_alive():
                    process.kill()
                    process.join()


def _answers(pipes: Sequence[Connection], what: str) -> dict[str, Any]:
    waiting, first = list(pipes), {}
    while waiting:
        ready = wait(waiting, TIMEOUT_S)
        if not ready:
            raise RuntimeError(f"{what} did not end within {TIMEOUT_S:g} s")
        for pipe in ready:
            assert isinstance(pipe, Connection)
            answer = pipe.recv()
            waiting.remove(pipe)
            if "failed" in answer:
                raise RuntimeError(f"{what} failed:\n{answer['failed']}")
            if pipe is pipes[0]:
                first = answer
    return first


def one_rank(pipe: Connection, environment: dict[str, str], row: str, name: str, ranks: int, size: str) -> None:
    """A rank's process."""
    os.environ.update(environment)
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    import torch

    from benchmarks.parallel_speed.contestants import Clock, Work, contestants, turns

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    work = Work(*SIZES[size])
    clock = Clock(work)
    try:
        if name in (IN_TURNS, WITHOUT_EXCHANGE):
            pipe.send({"turns": turns(ranks, exchanges=name == IN_TURNS)[row](work)})
        else:
            loss = contestants(ranks)[row][name](work, clock)
            pipe.send({"step_s": clock.seconds / work.timed, "loss": loss})
    except BaseException:  # whatever it is, the measurement shows it
        pipe.send({"failed": traceback.format_exc()})
    os._exit(0)
