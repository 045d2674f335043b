"""PackedEngine: continuous batching of Transformers, with clients that send a load."""

from __future__ import annotations

from contextlib import ExitStack
from threading import Event, Thread
from types import TracebackType

import numpy as np
import torch

from gpuwise.errors import JobError
from gpuwise.job import Job
from gpuwise.job.torchvision_cpu import make_importable
from gpuwise.runtime.build.host_memory import keep_freed_memory
from gpuwise.runtime.build.program import build
from gpuwise.runtime.devices.default import default_device
from gpuwise.runtime.serving.clients import Clients, run_clients
from gpuwise.runtime.serving.server import LoadReplay
from gpuwise.runtime.serving.waiting_line import RealClock
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.requests import Requests, requests
from gpuwise.serving.served import Served
from gpuwise.strategy import Strategy

WARM_UPS, WARM_UP_TOKENS = 3, 4
LOOK_S = 0.5  # between looks whether the engine still runs, while no token comes


class PackedEngine:
    """A model of Transformers behind its ContinuousBatchingManager, whose thread runs the model and sleeps while nothing waits.

    A context manager: the engine stops at its end. Prompts are made up, and the end of a text is ignored.
    """

    def __init__(self, job: Job, strategy: Strategy, device: torch.device, policy: BatchingPolicy) -> None:
        keep_freed_memory()
        torch.manual_seed(0)
        self._model, self._device, self._policy = build(job, strategy, device).model, device, policy
        self._loads = 0

    def __enter__(self) -> PackedEngine:
        make_importable()
        from transformers import GenerationConfig
        from transformers.generation.continuous_batching.continuous_api import (
            ContinuousBatchingConfig,
            ContinuousBatchingManager,
        )

        config = ContinuousBatchingConfig(
            page_size=self._policy.block_tokens,
            num_blocks=self._policy.blocks,
            max_batch_tokens=self._policy.batched_tokens,
            max_requests_per_batch=self._policy.sequences,
            allow_block_sharing=False,  # all made-up prompts are alike
            use_cuda_graph=False,
        )
        greedy = GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=WARM_UP_TOKENS)
        with ExitStack() as opened:
            opened.enter_context(default_device(self._device))
            self._manager = ContinuousBatchingManager(self._model, greedy, config)  # type: ignore[arg-type]
            self._manager.start()
            opened.callback(self._manager.stop, block=True, hard_stop=True)
            tokens = np.full(WARM_UPS, WARM_UP_TOKENS)
            self.replay(requests(np.zeros(WARM_UPS), tokens, tokens))
            self._opened = opened.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._opened.close()

    def replay(self, load: Requests) -> LoadReplay:
        """Serves a load. Ctrl-C ends it early; requests that had not ended then have no times."""
        self._loads += 1
        first_s, end_s = np.full(len(load), np.nan), np.full(len(load), np.nan)
        clock, stop, interrupted = RealClock(), Event(), False
        clients = Clients(load, _Submissions(self._manager, load, self._loads))
        thread = Thread(target=run_clients, args=(clients, clock, stop), name="clients", daemon=True)
        thread.start()
        try:
            while np.isnan(end_s).any():
                result = self._manager.get_result(timeout=LOOK_S)
                if result is None:
                    if not self._manager.is_running():
                        raise JobError("Transformers' continuous batching ended by itself; its log says why.")
                    continue
                now_s, (of, number) = clock.now_s(), map(int, result.request_id.split("-"))
                if of != self._loads:  # of a load that Ctrl-C ended
                    continue
                if result.generated_tokens and np.isnan(first_s[number]):
                    first_s[number] = now_s
                if result.is_finished():
                    end_s[number] = now_s
        except KeyboardInterrupt:
            interrupted = True
        finally:
            stop.set()
            thread.join()
        first_s[np.isnan(end_s)] = np.nan
        # The engine does not say how long its passes took.
        return LoadReplay(Served(load, first_s, end_s, 0, float("nan")), late_s=clients.late_s, interrupted=interrupted)


class _Submissions:
    """Where clients send their requests: the engine's own queue, which has no limit."""

    def __init__(self, manager: object, load: Requests, number: int) -> None:
        self._manager, self._load, self._number = manager, load, number

    def offer(self, request: int, *, arrival_s: float) -> bool:
        self._manager.add_request(  # type: ignore[attr-defined]
            [1] * int(self._load.input_tokens[request]),
            request_id=f"{self._number}-{request}",
            max_new_tokens=int(self._load.output_tokens[request]),
            streaming=True,
        )
        return True

    def withdraw(self, request: int) -> bool:
        return False

    def close(self) -> None:
        pass
