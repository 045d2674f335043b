"""Models of published serving runs, from the figures of their config.json."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from gpuwise.job.hf import hf_job
from gpuwise.serving.generation import Generation
from gpuwise.tracing.generation import record_generation

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
}
# By the word that the tables use for all weights of one architecture.
CONFIGS: dict[str, dict[str, object]] = {
    "llama-3-8b": {**_LLAMA, "vocab_size": 128_256},
    "llama-2-7b": {**_LLAMA, "vocab_size": 32_000, "num_key_value_heads": 32, "intermediate_size": 11_008},
    "mistral-7b": {**_LLAMA, "vocab_size": 32_000},
    "qwen3-32b": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 5120,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 25_600,
        "vocab_size": 151_936,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 40_960,
    },
}


@lru_cache
def generation_of(family: str, *, tp: int = 1) -> Generation:
    """How a model of this family generates in bf16 on one of `tp` devices that share its layers."""
    with TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(CONFIGS[family]), encoding="utf-8")
        job = hf_job(folder, seq_len=128)
        return record_generation(job, precision="bf16", tp=tp, longest=job.context_length)
