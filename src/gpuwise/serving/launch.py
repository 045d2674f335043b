"""launch_line: the command that starts an instance of an engine with the settings that were simulated."""

from __future__ import annotations

import shlex

from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.requests import Requests

UNKNOWN_MODEL = "MODEL"
# A file of options that trtllm-serve reads, and its text for a cache in fp8 (KvCacheConfig.dtype):
# https://nvidia.github.io/TensorRT-LLM/commands/trtllm-serve.html
CACHE_OPTIONS = ("kv_cache.yaml", "kv_cache_config: {dtype: fp8}")
LENGTH_STEP = 256  # to which the longest request is rounded up

# Presets are architectures without weights; these are the hub's ids of weights of their shapes, as the models' pages name them.
PRESET_WEIGHTS = {
    "gpt2": "openai-community/gpt2",
    "gpt2-medium": "openai-community/gpt2-medium",
    "gpt2-large": "openai-community/gpt2-large",
    "gpt2-xl": "openai-community/gpt2-xl",
    "llama2-7b": "meta-llama/Llama-2-7b-hf",
    "llama2-13b": "meta-llama/Llama-2-13b-hf",
    "llama3-8b": "meta-llama/Meta-Llama-3-8B",
    "llama3-70b": "meta-llama/Meta-Llama-3-70B",
    "llama3-405b": "meta-llama/Llama-3.1-405B",
    "mixtral-8x7b": "mistralai/Mixtral-8x7B-v0.1",
}
# --dtype of vLLM: https://docs.vllm.ai/en/v0.8.5/serving/engine_args.html
# What vLLM makes of weights in 16 bits by itself; other formats must be those of the weights:
# https://docs.vllm.ai/en/stable/features/quantization/
_NARROWED_BY_VLLM = {"fp8": "fp8", "nf4": "bitsandbytes"}
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def needs_narrow_weights(engine: str, weights: str) -> bool:
    """Whether the weights that an engine loads must have a format already: it does not make them of 16 bits as it starts."""
    if engine == "llama.cpp" or weights in ("", *_DTYPES):
        return False
    return weights not in (_NARROWED_BY_VLLM if engine.startswith("vllm") else {"fp8"} if engine == "sglang" else ())


def launched_model(job: str, *, engine: str, weights: str) -> str:
    """What stands for the model in a command: model_of, but for presets whose usual weights lack the format."""
    return UNKNOWN_MODEL if job in PRESET_WEIGHTS and needs_narrow_weights(engine, weights) else model_of(job)


def model_of(job: str) -> str:
    """The id or folder of a job's weights: that of an hf: job, the usual one of a preset, else UNKNOWN_MODEL."""
    if job.startswith("hf:"):
        return job.removeprefix("hf:")
    return PRESET_WEIGHTS.get(job, UNKNOWN_MODEL)


def longest_request(load: Requests, policy: BatchingPolicy, context: int | None) -> int:
    """Tokens of the longest request to allow: the longest simulated one, at most what the cache and the model hold."""
    return min(rounded_request(load, context), policy.cache_tokens)


def rounded_request(load: Requests, context: int | None) -> int:
    """Tokens of the longest simulated request, rounded up; at most what the model takes."""
    longest = int((load.input_tokens + load.output_tokens).max())
    rounded = -(-longest // LENGTH_STEP) * LENGTH_STEP
    return rounded if context is None else min(rounded, context)


def launch_line(
    engine: str,
    model: str,
    policy: BatchingPolicy,
    *,
    devices: int,
    precision: str,
    memory_share: float,
    longest: int,
    weights: str = "",
    cache: str = "",
    on_cpu: bool = False,
) -> str:
    """The command that starts one instance; "" for an engine or settings whose command is not known.

    Arguments:
        engine: its name, of gpuwise.serving.engines.
        model: id or folder of the weights. Where the engine does not narrow them itself, they must have the format.
        devices: devices that share the layers.
        memory_share: share of a device's memory that the engine takes.
        longest: tokens of the longest request.
        weights, cache: formats of weights and of keys and values; "" (default) for the precision.
        on_cpu: whether the device is a CPU.
    """
    if precision not in _DTYPES:
        return ""
    if engine == "llama.cpp":
        return _llama_server(model, policy, longest=longest, weights=weights, cache=cache, on_cpu=on_cpu)
    if engine == "tensorrt-llm":
        return _trtllm_serve(model, policy, devices=devices, longest=longest, cache=cache)
    if engine == "sglang":
        return _sglang_server(
            model,
            policy,
            devices=devices,
            precision=precision,
            memory_share=memory_share,
            longest=longest,
            weights=weights,
            cache=cache,
        )
    if engine == "vllm":
        # Flags: https://docs.vllm.ai/en/v0.8.5/serving/engine_args.html, https://docs.vllm.ai/en/latest/cli/index.html
        begin, batched_tokens = ["vllm", "serve", model], policy.batched_tokens
    elif engine in ("vllm-2024", "vllm-2023"):
        # Before 0.6 there was no `vllm serve`: https://docs.vllm.ai/en/latest/models/engine_args.html of 0.4. Without chunked
        # prefill a whole prompt must fit into an iteration.
        begin = ["python", "-m", "vllm.entrypoints.openai.api_server", "--model", model]
        batched_tokens = max(policy.batched_tokens, longest)
    else:
        return ""
    flags: dict[str, str | float] = {
        "--tensor-parallel-size": devices,
        "--max-num-batched-tokens": batched_tokens,
        "--max-num-seqs": policy.sequences,
        "--gpu-memory-utilization": memory_share,
        "--max-model-len": longest,
        "--dtype": _DTYPES[precision],
        **({"--quantization": _NARROWED_BY_VLLM[weights]} if weights in _NARROWED_BY_VLLM else {}),
        **({"--kv-cache-dtype": cache} if cache else {}),
    }
    return _line([*begin, *(word for flag in flags.items() for word in flag)])


def _sglang_server(
    model: str,
    policy: BatchingPolicy,
    *,
    devices: int,
    precision: str,
    memory_share: float,
    longest: int,
    weights: str,
    cache: str,
) -> str:
    # Flags: https://docs.sglang.io/advanced_features/server_arguments.html. What is not narrowed at start is by the checkpoint.
    words: list[str | float] = ["python", "-m", "sglang.launch_server", "--model-path", model, "--tp-size", devices]
    words += ["--chunked-prefill-size", policy.batched_tokens, "--max-running-requests", policy.sequences]
    words += ["--mem-fraction-static", memory_share, "--context-length", longest, "--dtype", _DTYPES[precision]]
    words += ["--quantization", weights] if weights == "fp8" else []
    return _line([*words, *(["--kv-cache-dtype", "fp8_e4m3"] if cache else [])])


def _trtllm_serve(model: str, policy: BatchingPolicy, *, devices: int, longest: int, cache: str) -> str:
    # Flags: https://nvidia.github.io/TensorRT-LLM/0.18.2/commands/trtllm-serve.html and tensorrt_llm/commands/serve.py of
    # 1.x. It has no flag for the type, which is that of the weights. Its share of memory is of what weights leave.
    words: list[str | float] = ["trtllm-serve", model, "--backend", "pytorch", "--tp_size", devices]
    words += ["--max_num_tokens", policy.batched_tokens, "--max_batch_size", policy.sequences, "--max_seq_len", longest]
    line = _line([*words, *(["--enable_chunked_prefill"] if policy.chunked and not policy.whole else [])])
    if not cache:
        return line
    return f"{line} --extra_llm_api_options {CACHE_OPTIONS[0]}"


def _llama_server(model: str, policy: BatchingPolicy, *, longest: int, weights: str, cache: str, on_cpu: bool) -> str:
    # Flags: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md. The context is that of all slots.
    mix = weights.removeprefix("gguf-").upper()
    words: list[str | float] = ["llama-server", "--model", f"{model.rpartition('/')[2]}-{mix}.gguf"]
    words += ["--n-gpu-layers", 0 if on_cpu else "all", "--parallel", policy.sequences, "--ubatch-size", policy.batched_tokens]
    words += ["--ctx-size", min(longest * policy.sequences, policy.cache_tokens)]
    return _line([*words, *(["--cache-type-k", cache, "--cache-type-v", cache] if cache else [])])


def _line(words: list[str | float]) -> str:
    return " ".join(shlex.quote(str(word)) for word in words)
