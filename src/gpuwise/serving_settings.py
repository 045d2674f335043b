"""The keywords of `serve_plan` and `serve_check`, and the flags of their verbs, made from one declaration."""

from __future__ import annotations

from typing import Annotated, TypedDict

from gpuwise.step_settings import JobSizes, Setting
from gpuwise.strategy import PRECISIONS

CHECKED_ENGINES = ("pytorch", "transformers", "llama.cpp", "onnxruntime", "openvino")


class ArrivalSettings(TypedDict, total=False):
    """How requests come to what `serve_plan` plans, and how its instances follow them."""

    arrivals: Annotated[
        str | None,
        Setting("poisson, or bursty=X: standard deviation of gaps over their mean (bursty alone: 2).", metavar="KIND"),
    ]
    concurrency: Annotated[
        int | None, Setting("In place of a rate: users who each send the next request when the last one is answered.")
    ]
    trace: Annotated[
        str | None, Setting("CSV or JSONL of requests: times and tokens come from it (docs/serving-load.md).", metavar="FILE")
    ]
    day: Annotated[
        str | None,
        Setting(
            "Relative rate from an hour on: 0:0.2,8:1,12:1.5,20:0.8, office or evening. --rate is the mean.", metavar="CURVE"
        ),
    ]
    autoscale: Annotated[bool | None, Setting("As many instances as each hour of the day takes.")]
    scale_to_zero: Annotated[bool | None, Setting("What it saves to stop an idle instance, and who waits for its start.")]
    idle: Annotated[
        str | None, Setting("How long an instance is idle before it stops (as long as it takes to start).", metavar="TIME")
    ]
    spot: Annotated[bool | None, Setting("Spot prices, with instances to spare for those that are taken away.")]


class ForwardSettings(JobSizes, total=False):
    """What `serve_plan` takes of models that answer in one forward pass, and of no others."""

    batch: Annotated[int | None, Setting("Most requests of a forward pass (of 1, 2, 4 to 256 the one that serves most).")]
    window: Annotated[
        str | None, Setting("How long an idle server waits for a batch to fill, such as 5ms (0).", metavar="TIME")
    ]
    buckets: Annotated[
        str | None,
        Setting(
            "Of --input: batches of one bucket, padded to its end: 64,128,512 (to the longest of a batch).", metavar="ENDS"
        ),
    ]
    servers: Annotated[
        str | None,
        Setting("Processes that share a processor's cores and one line of requests; auto: the best number (1).", metavar="N"),
    ]
    channels_last: Annotated[bool | None, Setting("Images and convolutions with their channels innermost in memory.")]
    compile: Annotated[bool | None, Setting("Forward passes under torch.compile.")]


class ModeSettings(TypedDict, total=False):
    """Ways in which `serve_plan` serves a model beside that of a model on its devices."""

    gpu_layers: Annotated[
        str | None,
        Setting("Layers on the card, its head included, the rest on the host (llama.cpp); auto: as many as fit.", metavar="N"),
    ]
    cpu_experts: Annotated[
        str | None,
        Setting("Layers, from the first, whose experts stay on the host (llama.cpp); all, or auto: few.", metavar="N"),
    ]
    host: Annotated[str | None, Setting("Processor of the host: ryzen-5950x, or here (ryzen-7950x).", metavar="CPU")]
    host_memory: Annotated[str | None, Setting("Memory of the host (64GiB; this machine's with here).", metavar="SIZE")]
    draft: Annotated[
        str | None,
        Setting("A smaller job that writes tokens ahead, ngram, or a layer of the model: mtp or eagle3.", metavar="JOB"),
    ]
    draft_tokens: Annotated[int | None, Setting("Tokens that the draft writes ahead (3; of mtp 1).")]
    acceptance: Annotated[
        float | None,
        Setting("Probability that the model accepts a token of the draft (0.7; mtp 0.82, eagle3 0.76).", metavar="X"),
    ]
    prefill_on: Annotated[
        str | None, Setting("Devices of instances that read prompts alone; --on then writes answers.", metavar="DEVICES")
    ]
    network: Annotated[
        str | None,
        Setting('What joins both, such as "100 Gbit Ethernet" (that of an offer); inside: one machine.', metavar="NETWORK"),
    ]


class ServingSettings(ArrivalSettings, ModeSettings, ForwardSettings, total=False):
    """What `serve_plan` takes beside the job, the devices and the rate."""

    slo: Annotated[
        str | None, Setting("Limits: ttft=500ms,tpot=50ms,latency=10s,share=0.99, or some of them.", metavar="LIMITS")
    ]
    input: Annotated[int | None, Setting("Mean tokens of a prompt, or of an encoder's sample where these differ.")]
    output: Annotated[int | None, Setting("Mean tokens of an answer.")]
    spread: Annotated[float | None, Setting("Standard deviation of lengths over their means (1).", metavar="X")]
    prefix_hits: Annotated[float | None, Setting("Share of each prompt that the prefix cache holds (0).", metavar="X")]
    engine: Annotated[
        str | None,
        Setting(
            "vllm (the default), sglang, tensorrt-llm, llama.cpp, or another of docs/serving.md; of forward passes pytorch "
            "(the default), onnxruntime or openvino.",
            metavar="NAME",
        ),
    ]
    precision: Annotated[
        str | None,
        Setting(
            "Of activations and cache: bf16, fp16 or fp32; the engine's by default, mostly bf16. Of forward passes as for "
            "`forecast`; each device's fastest by default.",
            metavar="P",
        ),
    ]
    cache: Annotated[
        str | None, Setting("Format of keys and values: fp8 (vllm, sglang, tensorrt-llm) or q8_0 (llama.cpp).", metavar="F")
    ]
    weights: Annotated[
        str | None,
        Setting("Format of weights: fp8, fp8-block, int8, int4, nf4, mxfp4, nvfp4, or gguf-q4_k_m and others.", metavar="F"),
    ]
    budget: Annotated[str | None, Setting("Most dollars a month.", metavar="USD")]
    profile: Annotated[
        bool | None,
        Setting("Time the model's passes on this machine first, and plan `here` from them (text: --engine llama.cpp)."),
    ]
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
        str | None,
        Setting(
            "Plain PyTorch (default), Transformers' continuous batching of hf: models, llama.cpp, or passes exported to ONNX "
            "Runtime or OpenVINO.",
            CHECKED_ENGINES,
        ),
    ]
    weights: Annotated[
        str | None, Setting("Format of weights in llama.cpp: gguf-f16, gguf-q8_0 and others (gguf-q4_k_m).", metavar="F")
    ]
    batch: Annotated[int | None, Setting("Most requests that run together (8; of text 1, in transformers 16, in llama.cpp 4).")]
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
    profile: Annotated[bool | None, Setting("Time the model's passes for some seconds first, and forecast from them.")]
