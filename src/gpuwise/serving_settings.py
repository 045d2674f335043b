"""The keywords of `serve_plan` and `serve_check`, and the flags of their verbs, made from one declaration."""

from __future__ import annotations

from typing import Annotated, TypedDict

from gpuwise.step_settings import Setting
from gpuwise.strategy import PRECISIONS

CHECKED_ENGINES = ("pytorch", "transformers")


class ServingSettings(TypedDict, total=False):
    """What `serve_plan` takes beside the job, the devices and the rate."""

    slo: Annotated[
        str | None, Setting("Limits: ttft=500ms,tpot=50ms,latency=10s,share=0.99, or some of them.", metavar="LIMITS")
    ]
    input: Annotated[int | None, Setting("Mean tokens of a prompt.")]
    output: Annotated[int | None, Setting("Mean tokens of an answer.")]
    spread: Annotated[float | None, Setting("Standard deviation of both lengths over their means (1).", metavar="X")]
    prefix_hits: Annotated[float | None, Setting("Share of each prompt that the prefix cache holds (0).", metavar="X")]
    engine: Annotated[str | None, Setting("vllm (the default), vllm-2024, sglang, tensorrt-llm or llama.cpp.", metavar="NAME")]
    precision: Annotated[
        str | None, Setting("Of activations and cache: bf16, fp16 or fp32; the engine's by default, mostly bf16.", metavar="P")
    ]
    cache: Annotated[
        str | None, Setting("Format of keys and values: fp8 (vllm, sglang, tensorrt-llm) or q8_0 (llama.cpp).", metavar="F")
    ]
    weights: Annotated[
        str | None,
        Setting("Format of weights: fp8, fp8-block, int8, int4, nf4, mxfp4, nvfp4, or gguf-q4_k_m and others.", metavar="F"),
    ]
    budget: Annotated[str | None, Setting("Most dollars a month.", metavar="USD")]
    api_price: Annotated[
        str | None,
        Setting("Dollars for a million tokens read and written of an API to compare with: 0.5,1.5.", metavar="IN,OUT"),
    ]


class CheckSettings(TypedDict, total=False):
    """What `serve_check` takes beside the job."""

    rate: Annotated[
        str | None, Setting("Requests: 5/s, 90/min; inf for all at once (60 % of what is served at most).", metavar="RATE")
    ]
    requests: Annotated[int | None, Setting("Requests sent (what comes in 20 s, 20 to 2,000).")]
    duration: Annotated[str | None, Setting("Time over which requests arrive, in place of their number.", metavar="TIME")]
    engine: Annotated[
        str | None, Setting("Plain PyTorch (default), or Transformers' continuous batching of hf: models.", CHECKED_ENGINES)
    ]
    batch: Annotated[int | None, Setting("Most requests that run together (8; 1 or, in transformers, 16 of text).")]
    window: Annotated[
        str | None, Setting("How long an idle server waits for a batch to fill, such as 5ms (0).", metavar="TIME")
    ]
    queue: Annotated[int | None, Setting("Most requests that wait; one more is turned away (1000).")]
    patience: Annotated[
        str | None, Setting("Wait after which a client leaves, unless its request runs (no limit).", metavar="TIME")
    ]
    slo: Annotated[
        str | None, Setting("Limits: ttft=500ms,tpot=50ms,latency=10s,share=0.99, or some of them.", metavar="LIMITS")
    ]
    input: Annotated[int | None, Setting("Mean tokens of a prompt (64).")]
    output: Annotated[int | None, Setting("Mean tokens of an answer (32).")]
    spread: Annotated[
        float | None, Setting("Standard deviation of both lengths over their means (1; 0 in batches).", metavar="X")
    ]
    seq_len: Annotated[int | None, Setting("Tokens a request, of a model that does not generate.")]
    image_size: Annotated[int | None, Setting("Height and width of images, in pixels.")]
    precision: Annotated[str | None, Setting("Number formats of the arithmetic.", PRECISIONS)]
    seed: Annotated[int | None, Setting("Of arrivals and lengths (0).")]
    saturate: Annotated[bool | None, Setting("Send all requests again at once, to measure the most that is served.")]
