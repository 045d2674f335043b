"""serve_check: a load served for real on this machine, beside its forecast."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

from gpuwise.api.plain_arguments import plainly
from gpuwise.api.serving_load import check_plan
from gpuwise.api.serving_run import serve_here
from gpuwise.serving.check import ServeCheck
from gpuwise.serving_settings import CheckSettings

if TYPE_CHECKING:
    from gpuwise.job import Job


@plainly
def serve_check(
    job: str | Job, *, progress: Callable[[str], None] = lambda words: None, **settings: Unpack[CheckSettings]
) -> ServeCheck:
    """Serves a job on this machine, and compares each latency with its forecast.

    The forecast is made before anything runs. Then clients in a thread of this process send the very requests of the forecast,
    and the server runs them together as gpuwise.serving.windowed says. A model that generates (Job.generate) runs a request to
    its last token before the next one; any other model runs forward passes over a batch of samples.
    Transformers' continuous batching and llama.cpp have servers of their own, which requests join at every iteration.

    Arguments (constants in gpuwise.api.serving_load):
        job: as for `forecast`; no saved trace.
        progress: called with a few words before each stage.
        settings: optional keywords:
            rate: requests, such as "5/s"; "inf" for all at once. None (default) takes SHARE of the highest rate within the
                limits, as forecast.
            requests, duration: how many are sent, or for how long. None (default) takes LOAD_S seconds, at least FEWEST and at
                most MOST requests.
            engine: "pytorch" (default), "transformers", "llama.cpp", "onnxruntime" or "openvino".
            weights: format of weights in llama.cpp, such as "gguf-q8_0". Default "gguf-q4_k_m".
            batch: most requests of a pass. Default BATCH; 1 for a model that generates, whose prompts must otherwise be equally
                long (spread=0); PACKED in Transformers, 4 in llama.cpp.
            window: how long an idle server waits for a batch to fill, such as "5ms". Default none.
            queue: most requests that wait. Default QUEUE.
            engine: "pytorch" (default), "transformers", or of forward passes "onnxruntime" or "openvino", which run the
                exported graph on the processor once its outputs are those of PyTorch.
            patience: wait after which a client leaves, such as "2s". Default no limit.
            slo: limits as for `serve_plan`.
            input, output: mean tokens of prompts and answers. Default INPUT_TOKENS and OUTPUT_TOKENS.
            spread: standard deviation of both over their means. Default 1; 0 where prompts run together.
            seq_len, image_size, precision: as for `forecast`.
            seed: of arrivals and lengths. Default 0.
            saturate: whether to send all requests once more, all at once, to measure the most that is served.
            profile: whether to time the model's own passes first, and to forecast from them; the result's `timing` has both.

    Ctrl-C ends the load early; the result is then of the requests that had ended, with `interrupted` True.

    Raises InputError, UnknownNameError, JobError, UnsupportedError or MissingDependencyError.
    """
    plan = check_plan(job, progress=progress, **settings)
    return serve_here(plan, progress=progress)
