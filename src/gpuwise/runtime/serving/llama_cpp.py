"""LlamaCppEngine: a job's model behind the server of llama.cpp in this process, with clients that send a load."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from threading import Event, Lock, Thread
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
import torch

from gpuwise.errors import JobError
from gpuwise.job import Job
from gpuwise.job.dependencies import require
from gpuwise.runtime.build.program import build
from gpuwise.runtime.gguf.architectures import llama_cpp_model
from gpuwise.runtime.gguf.file import write_gguf
from gpuwise.runtime.serving.clients import Clients, run_clients
from gpuwise.runtime.serving.server import LoadReplay
from gpuwise.runtime.serving.waiting_line import RealClock
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.requests import Requests, requests
from gpuwise.serving.served import Served, span_with_work_s
from gpuwise.strategy import Strategy

if TYPE_CHECKING:
    from xllamacpp import CommonParams, Server

WARM_UPS, WARM_UP_TOKENS = 3, 4
ERRORS_ALONE = 1  # verbosity of llama.cpp's log (common/log.h)
TOKEN = 1  # what prompts are made of


class LlamaCppEngine:
    """A model in a GGUF file behind llama.cpp's server, which batches continuously over slots.

    A context manager: the server and its threads stop at its end, and the file is gone as soon as it is read. Prompts are made
    up and come as numbers of tokens; no prompt's cache is kept, and the end of a text is ignored. llama.cpp opens a port on
    127.0.0.1, behind a random key; nothing uses it.

    Arguments:
        job: whose model generates.
        mix: of gpuwise.serving.ggml.MIXES.
        policy: most sequences and new tokens at once.
        context: most tokens of a sequence.
        threads: that compute.
    """

    def __init__(self, job: Job, *, mix: str, policy: BatchingPolicy, context: int, threads: int) -> None:
        self._job, self._mix, self._policy, self._context, self._threads = job, mix, policy, context, threads
        self._server: Server | None = None

    def __enter__(self) -> LlamaCppEngine:
        torch.manual_seed(0)
        with TemporaryDirectory(prefix="gpuwise-gguf-") as folder:
            path = Path(folder) / "model.gguf"
            model = build(self._job, Strategy(precision="fp32", mode="infer"), torch.device("cpu")).model
            read = llama_cpp_model(model, name=self._job.name or "the job")
            write_gguf(path, read, self._mix, context=self._context, threads=self._threads)
            del model, read
            self._server = require("xllamacpp", purpose="serve with llama.cpp").Server(self._params(path))
        tokens = np.full(WARM_UPS, WARM_UP_TOKENS)
        self.replay(requests(np.zeros(WARM_UPS), tokens, tokens), queue=None)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server = None  # its destructor waits for its threads

    def written(self, prompt: list[int], count: int) -> list[int]:
        """The likeliest tokens after a prompt."""
        assert self._server is not None
        texts: list[str] = []
        _complete(self._server, prompt, count, lambda text: texts.append(text))
        return [int(number) for text in texts for number in json.loads(text)["choices"][0]["text"].split()]

    def replay(self, load: Requests, *, queue: int | None) -> LoadReplay:
        """Serves a load. Ctrl-C ends it early; requests that had not ended then have no times.

        queue: most requests that wait; None for no limit.
        """
        assert self._server is not None
        clock, stop, interrupted = RealClock(), Event(), False
        slots = _Slots(self._server, load, clock, stop, slots=self._policy.sequences, queue=queue)
        clients = Clients(load, slots)
        sender = Thread(target=run_clients, args=(clients, clock, stop), name="clients", daemon=True)
        sender.start()
        try:
            sender.join()
            slots.join()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            stop.set()
            sender.join()
            slots.join()
        if slots.failure is not None:
            raise slots.failure
        slots.first_s[np.isnan(slots.end_s)] = np.nan
        busy_s = span_with_work_s(load.arrival_s, slots.end_s)
        served = Served(load, slots.first_s, slots.end_s, 0, busy_s)  # llama.cpp does not say how many passes it ran
        return LoadReplay(served, tuple(clients.turned_away), late_s=clients.late_s, interrupted=interrupted)

    def _params(self, path: Path) -> CommonParams:
        llama_cpp = require("xllamacpp", purpose="serve with llama.cpp")
        params = llama_cpp.CommonParams()
        params.model.path = str(path)
        params.load_mode = llama_cpp.llama_load_mode.LLAMA_LOAD_MODE_NONE  # without a map, so that the file can go
        params.n_gpu_layers = 0
        params.n_parallel = self._policy.sequences
        params.n_ctx = self._policy.sequences * self._context
        params.n_batch = params.n_ubatch = self._policy.batched_tokens
        for threads in (params.cpuparams, params.cpuparams_batch):
            threads.n_threads, threads.poll = self._threads, 0  # idle threads sleep
        params.fit_params = params.warmup = params.cache_prompt = params.cache_idle_slots = params.ui = False
        params.cache_ram_mib = params.n_ctx_checkpoints = 0
        params.slot_prompt_similarity = 0.0
        params.hostnames, params.api_keys = ["127.0.0.1"], [secrets.token_hex()]
        params.verbosity = ERRORS_ALONE
        return params


class _Slots:
    """Where clients send their requests: threads that each have one request in llama.cpp, whose call returns with its end.

    There are twice as many as slots, so that the next request waits inside of llama.cpp when a slot becomes free.

    Attributes:
        first_s, end_s: of each request; NaN where it has none.
        failure: the first error of a thread; None without one.
    """

    def __init__(self, server: Server, load: Requests, clock: RealClock, stop: Event, *, slots: int, queue: int | None) -> None:
        self._server, self._load, self._clock, self._stop = server, load, clock, stop
        self._most = None if queue is None else slots + queue
        self._inside, self._lock = 0, Lock()
        self._waiting: SimpleQueue[int | None] = SimpleQueue()
        self.first_s, self.end_s = np.full(len(load), np.nan), np.full(len(load), np.nan)
        self.failure: Exception | None = None
        self._threads = [Thread(target=self._work, name=f"slot {number}", daemon=True) for number in range(2 * slots)]
        for thread in self._threads:
            thread.start()

    def offer(self, request: int, *, arrival_s: float) -> bool:
        with self._lock:
            if self._most is not None and self._inside >= self._most:
                return False
            self._inside += 1
        self._waiting.put(request)
        return True

    def withdraw(self, request: int) -> bool:
        return False

    def close(self) -> None:
        for _ in self._threads:
            self._waiting.put(None)

    def join(self) -> None:
        """Waits for the threads. Once `stop` is set, they end with their next token."""
        if self._stop.is_set():
            self.close()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (request := self._waiting.get()) is not None and not self._stop.is_set():
            try:
                self._answer(request)
            except Exception as error:
                self.failure = self.failure or error
                self._stop.set()
            with self._lock:
                self._inside -= 1

    def _answer(self, request: int) -> None:
        def at_token(text: str) -> bool:
            if np.isnan(self.first_s[request]):
                self.first_s[request] = self._clock.now_s()
            return self._stop.is_set()

        prompt = [TOKEN] * int(self._load.input_tokens[request])
        if _complete(self._server, prompt, int(self._load.output_tokens[request]), at_token):
            self.end_s[request] = self._clock.now_s()


def _complete(server: Server, prompt: list[int], count: int, at_token: Callable[[str], bool | None]) -> bool:
    """Has llama.cpp write `count` tokens after a prompt, the likeliest each time; whether it wrote all of them.

    at_token: called with llama.cpp's JSON of each token, and of the end; where it returns True, the request ends early.

    Raises JobError where llama.cpp refuses the request, or ends it early.
    """
    last, early = "", False

    def receive(text: str) -> bool:
        nonlocal last, early
        last, early = text, bool(at_token(text))
        return early

    body = {
        "prompt": prompt,
        "n_predict": count,
        "ignore_eos": True,
        "samplers": ["top_k"],
        "top_k": 1,
        "cache_prompt": False,
        "stream": True,
    }
    server.handle_completions(json.dumps(body), receive)
    if early:
        return False
    written = json.loads(last or "{}").get("usage", {}).get("completion_tokens")
    if written != count:
        raise JobError(f"llama.cpp wrote {written} of {count} tokens: {last[:300]}")
    return True
