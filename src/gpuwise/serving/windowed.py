"""Dynamic batching with a window: whole requests in one forward pass, as Triton, TorchServe and ONNX Runtime's servers do.

Models without a cache are served so: vision, encoders, recommendation. The first request of a batch waits at most for the
window; a full batch does not wait, and neither does one whose first request has waited that long while the model was busy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpuwise.errors import InputError
from gpuwise.serving.requests import Requests
from gpuwise.serving.served import Served


@dataclass(frozen=True)
class WindowPolicy:
    """Batches of whole requests.

    Attributes:
        batch: most requests of a forward pass.
        window_s: longest wait of a batch's first request for others, while the model is idle; 0 (default) for none.
        queue: most requests that wait while the model is busy; None (default) for no limit.
    """

    batch: int
    window_s: float = 0.0
    queue: int | None = None

    def __post_init__(self) -> None:
        if self.batch < 1 or not 0 <= self.window_s < np.inf or (self.queue is not None and self.queue < 1):
            raise InputError("A batch takes at least one request, a window 0 s or more, a queue at least one request.")


def serve_batches(load: Requests, batch_s: Callable[[int, int], float], policy: WindowPolicy) -> Served:
    """Serves a load on one instance of a model that takes whole requests.

    batch_s: seconds of a forward pass of a number of requests, padded to the longest one's input tokens.
    """
    arrival_s = load.arrival_s.tolist()
    inputs = load.input_tokens
    count = len(load)
    end_s = np.full(count, np.nan)
    clock_s = busy_s = 0.0
    iterations = 0
    queue: list[int] = []
    coming = 0
    while coming < count or queue:
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
        batch, queue = queue[: policy.batch], queue[policy.batch :]
        seconds = batch_s(len(batch), int(inputs[batch[0] : batch[-1] + 1].max()))
        clock_s += seconds
        busy_s += seconds
        iterations += 1
        end_s[batch] = clock_s
        while coming < count and arrival_s[coming] <= clock_s:
            if policy.queue is None or len(queue) < policy.queue:
                queue.append(coming)
            coming += 1
    return Served(load, end_s, end_s, iterations, busy_s)
