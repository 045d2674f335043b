"""The keywords of `serve_plan` and the flags of `gpuwise serve-plan`, made from one declaration."""

from __future__ import annotations

from typing import Annotated, TypedDict

from gpuwise.step_settings import Setting


class ServingSettings(TypedDict, total=False):
    """What `serve_plan` takes beside the job, the devices and the rate."""

    slo: Annotated[
        str | None, Setting("Limits: ttft=500ms,tpot=50ms,latency=10s,share=0.99, or some of them.", metavar="LIMITS")
    ]
    input: Annotated[int | None, Setting("Mean tokens of a prompt.")]
    output: Annotated[int | None, Setting("Mean tokens of an answer.")]
    spread: Annotated[float | None, Setting("Standard deviation of both lengths over their means (1).", metavar="X")]
    prefix_hits: Annotated[float | None, Setting("Share of each prompt that the prefix cache holds (0).", metavar="X")]
    engine: Annotated[str | None, Setting("vllm (the default), vllm-2024, tensorrt-llm or llama.cpp.", metavar="NAME")]
    precision: Annotated[
        str | None, Setting("Of activations and cache: bf16, fp16 or fp32; the engine's by default, mostly bf16.", metavar="P")
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
