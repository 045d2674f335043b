"""Models behind the server: forward passes over collated samples, and generation with the job's own cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy

import numpy as np
import torch

from gpuwise.errors import UnsupportedError
from gpuwise.job import Job
from gpuwise.job.batches import checked_batch, map_tensors, named_tensors
from gpuwise.job.job import Batch
from gpuwise.runtime.build.host_memory import keep_freed_memory
from gpuwise.runtime.build.program import Program, build
from gpuwise.runtime.devices import backend_of
from gpuwise.serving.requests import Requests
from gpuwise.strategy import Strategy

SAMPLES = 16  # different samples that requests take in turn
WARM_UPS = 3


class ForwardModel:
    """A model without a cache. A request is a sample of the job's batch; those of a batch are collated and run together."""

    def __init__(self, job: Job, strategy: Strategy, device: torch.device, *, batch: int) -> None:
        check_collates(job)
        self._program = built(job, strategy, device)
        self._samples = [checked_batch(job, 1) for _ in range(SAMPLES)]
        for size in (1, batch):
            for _ in range(WARM_UPS):
                self.answer(range(size), _nothing, _nothing)

    def serving(self, load: Requests) -> ForwardModel:
        """The same model: requests do not differ."""
        return self

    def answer(self, group: Sequence[int], first: Callable[[int], None], last: Callable[[int], None]) -> None:
        self._program.infer(collated([self._samples[request % SAMPLES] for request in group]))
        backend_of(self._program.device).synchronize()
        for request in group:
            first(request)
            last(request)


class GeneratingModel:
    """A model that generates. The prompts of a group are equally long; its cache is the job's, one for the whole group.

    Each next token is the likeliest one, and comes to the host before the next pass, as for a client that reads along. Prompts
    are made up, and the end of a text is ignored: a load says how many tokens are written.
    """

    def __init__(self, job: Job, strategy: Strategy, device: torch.device, load: Requests, *, batch: int) -> None:
        assert job.generate is not None
        self._generate, self._load = job.generate, load
        self._program = built(job, strategy, device)
        for size in {1, batch}:
            for _ in range(WARM_UPS):
                self._run(list(range(size)), int(load.input_tokens.max()), np.full(size, 3), _nothing, _nothing)

    def serving(self, load: Requests) -> GeneratingModel:
        """The same model, whose requests are those of another load."""
        other = copy(self)
        other._load = load
        return other

    def answer(self, group: Sequence[int], first: Callable[[int], None], last: Callable[[int], None]) -> None:
        prompts = self._load.input_tokens[list(group)]
        assert prompts.min() == prompts.max()
        self._run(group, int(prompts[0]), self._load.output_tokens[list(group)], first, last)

    def _run(
        self,
        group: Sequence[int],
        prompt: int,
        outputs: np.ndarray,
        first: Callable[[int], None],
        last: Callable[[int], None],
    ) -> None:
        tokens = torch.zeros((len(group), prompt), dtype=torch.long, device=self._program.device)
        cache: object = None
        with torch.no_grad():
            for written in range(1, int(outputs.max()) + 1):
                logits, cache = self._generate(self._program.model, tokens, cache)
                of_last = logits[:, -1] if logits.dim() == 3 else logits  # of the last token, where the model makes all
                tokens = of_last.argmax(dim=-1, keepdim=True)
                tokens.tolist()  # waits for the device
                for request, count in zip(group, outputs.tolist(), strict=True):
                    if written == 1:
                        first(request)
                    if written == count:
                        last(request)


def collated(samples: Sequence[Batch]) -> Batch:
    """One batch of several batches of one sample each."""
    columns = zip(*([tensor for _, tensor in named_tensors(sample)] for sample in samples), strict=True)
    joined = iter([torch.cat(column) for column in columns])
    return map_tensors(samples[0], lambda _: next(joined))


def check_collates(job: Job) -> None:
    """Raises UnsupportedError where samples cannot be put together into one batch."""
    if job.samples_in is not None:
        raise UnsupportedError(
            f"samples of {job.name or 'the job'} have no dimension of their own, so that requests cannot be collated.",
            ["gpuwise validate JOB --mode infer"],
        )


def built(job: Job, strategy: Strategy, device: torch.device) -> Program:
    """The program of a job, whose random weights are always the same."""
    keep_freed_memory()
    torch.manual_seed(0)
    return build(job, strategy, device)


def _nothing(request: int) -> None:
    pass
