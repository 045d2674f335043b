"""Dynamic batching with a window: whole requests in one forward pass, as Triton, TorchServe and ONNX Runtime's servers do.

Models without a cache are served so: vision, encoders, recommendation. The first request of a batch waits at most for the
window; a full batch does not wait, and neither does one whose first request has waited that long while the model was busy.

A server of plain PyTorch generates text so, too: a group of requests whose prompts are equally long runs until its last token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError
from gpuwise.serving.requests import Requests
from gpuwise.serving.served import Served

Seconds: TypeAlias = "float | NDArray[np.float64]"
# Of some requests that run together: seconds from their start until the first and the last token of each, in their order.
GroupTime: TypeAlias = Callable[[Sequence[int]], tuple[Seconds, Seconds]]


@dataclass(frozen=True)
class WindowPolicy:
    """Batches of whole requests.

    Attributes:
        batch: most requests of a forward pass.
        window_s: longest wait of a batch's first request for others, while the model is idle; 0 (default) for none.
        queue: most requests that wait while the model is busy; None (default) for no limit.
        patience_s: wait after which a client leaves if its request has not started, longer than the window. Infinite by
            default.
    """

    batch: int
    window_s: float = 0.0
    queue: int | None = None
    patience_s: float = np.inf

    def __post_init__(self) -> None:
        if self.batch < 1 or not 0 <= self.window_s < np.inf or (self.queue is not None and self.queue < 1):
            raise InputError("A batch takes at least one request, a window 0 s or more, a queue at least one request.")
        if not self.patience_s > self.window_s:
            raise InputError("Clients must wait longer than the window, or no batch would have others to wait for.")


@dataclass(frozen=True)
class ServerCosts:
    """What a real server adds to the passes of its model.

    Attributes:
        idle_s: seconds that batches took longer than the median after an idle moment: the server wakes up, caches have gone
            cold. Each batch that meets an idle server draws one; empty (default) for 0.
        between_s: seconds between two batches.
        jitter: factors of the passes' seconds. Each batch that meets a busy server draws one; empty (default) for 1.
    """

    idle_s: tuple[float, ...] = ()
    between_s: float = 0.0
    jitter: tuple[float, ...] = ()

    @property
    def mean_jitter(self) -> float:
        """The mean factor of a pass."""
        return float(np.mean(self.jitter)) if self.jitter else 1.0

    def scaled(self, factor: float) -> ServerCosts:
        """The same with so many times the seconds."""
        return ServerCosts(tuple(factor * seconds for seconds in self.idle_s), factor * self.between_s, self.jitter)

    def draws(self, count: int) -> tuple[list[float], list[float]]:
        """For so many batches, the same ones every time: seconds added to one that meets an idle server, and the factor of
        one that meets a busy server."""
        rng = np.random.default_rng(0)
        idle_s: list[float] = rng.choice(self.idle_s or (0.0,), count).tolist()
        jitter: list[float] = rng.choice(self.jitter or (1.0,), count).tolist()
        return idle_s, jitter


NO_COSTS = ServerCosts()


def serve_batches(load: Requests, batch_s: Callable[[int, int], float], policy: WindowPolicy) -> Served:
    """Serves a load on one instance of a model that takes whole requests.

    batch_s: seconds of a forward pass of a number of requests, padded to the longest one's input tokens.
    """
    inputs = load.input_tokens

    def group_s(group: Sequence[int]) -> tuple[float, float]:
        seconds = batch_s(len(group), int(inputs[group].max()))
        return seconds, seconds

    return serve_groups(load, group_s, policy)


def serve_groups(load: Requests, group_s: GroupTime, policy: WindowPolicy, *, costs: ServerCosts = NO_COSTS) -> Served:
    """Serves a load on one instance of a model that runs some requests together, until the last token of all of them."""
    idle_s, jitter = costs.draws(len(load))
    arrival_s = load.arrival_s.tolist()
    leave_s = (load.arrival_s + policy.patience_s).tolist()
    count = len(load)
    first_s, end_s = np.full(count, np.nan), np.full(count, np.nan)
    clock_s = busy_s = 0.0
    iterations = 0
    queue: list[int] = []
    coming = 0
    while coming < count or queue:
        idle = not queue and arrival_s[coming] > clock_s
        if not queue:
            clock_s = max(clock_s, arrival_s[coming])
            queue.append(coming)
            coming += 1
        starts_s = max(clock_s, arrival_s[queue[0]] + policy.window_s)
        while coming < count and len(queue) < policy.batch and arrival_s[coming] <= starts_s:
            clock_s = max(clock_s, arrival_s[coming])
            queue.append(coming)
            coming += 1
        if len(queue) < policy.batch:
            clock_s = starts_s
        group, queue = queue[: policy.batch], queue[policy.batch :]
        first, end = group_s(group)
        factor, added_s = (1.0, idle_s[iterations]) if idle else (jitter[iterations], 0.0)
        added_s += costs.between_s
        first, end = factor * first + added_s, factor * end + added_s
        first_s[group], end_s[group] = clock_s + first, clock_s + end
        seconds = end if isinstance(end, float) else float(np.max(end))
        clock_s += seconds
        busy_s += seconds
        iterations += 1
        while coming < count and arrival_s[coming] <= clock_s:
            _let_leave(queue, leave_s, arrival_s[coming])
            if policy.queue is None or len(queue) < policy.queue:
                queue.append(coming)
            coming += 1
        _let_leave(queue, leave_s, clock_s)
    return Served(load, first_s, end_s, iterations, busy_s)


def _let_leave(queue: list[int], leave_s: Sequence[float], clock_s: float) -> None:
    """Takes out those whose client has left; who came first leaves first."""
    while queue and leave_s[queue[0]] <= clock_s:
        del queue[0]
