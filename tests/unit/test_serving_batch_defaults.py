"""What servers take at once by themselves, against the rules in their own sources."""

from __future__ import annotations

import pytest

from gpuwise.hardware import load_catalog
from gpuwise.serving.engines import engine_of

GIB = 2**30


@pytest.mark.parametrize(
    ("engine", "chip", "batched_tokens", "sequences"),
    [
        ("vllm", "h100-80gb-sxm", 8192, 1024),  # get_batch_defaults: 70 GiB and more, but for A100s
        ("vllm", "mi300x", 8192, 1024),
        ("vllm", "a100-80gb-sxm", 2048, 256),
        ("vllm", "rtx-4090", 2048, 256),
        ("vllm-2024", "h100-80gb-sxm", 2048, 256),
        ("tensorrt-llm", "h100-80gb-sxm", 8192, 2048),  # BuildConfig
        ("tensorrt-llm", "rtx-4090", 8192, 2048),
        ("sglang", "rtx-4090", 2048, 2048),  # _handle_gpu_memory_settings: chunked_prefill_size by memory
        ("sglang", "a100-40gb-sxm", 4096, 2048),
        ("sglang", "a100-80gb-sxm", 8192, 2048),
        ("sglang", "h200-141gb-sxm", 8192, 2048),
        ("sglang", "b200-180gb-sxm", 16_384, 2048),
    ],
)
def test_limits_by_memory_and_chip(engine: str, chip: str, batched_tokens: int, sequences: int):
    capacity = load_catalog().chip(chip).usable_memory_bytes
    assert capacity is not None
    limits = engine_of(engine).limits.on(chip, capacity)
    assert (limits.batched_tokens, limits.sequences) == (batched_tokens, sequences)


def test_a_device_without_a_name_goes_by_its_memory():
    assert engine_of("vllm").limits.on("", 80 * GIB).sequences == 1024
    assert engine_of("vllm").limits.on("", 69 * GIB).sequences == 256


@pytest.mark.parametrize("cache_tokens", [100, 5000, 100_000, 1_000_000, 1 << 40])
@pytest.mark.parametrize("context", [2048, 131_072])
def test_sequences_of_sglang_grow_with_the_cache(cache_tokens: int, context: int):
    expected = min(max(min(int(cache_tokens / context * 512), 4096), 2048), cache_tokens // 2)  # _resolve_max_num_reqs
    assert engine_of("sglang").limits.grown(2048, cache_tokens=cache_tokens, context=context) == expected
    assert engine_of("vllm").limits.grown(1024, cache_tokens=cache_tokens, context=context) == 1024
