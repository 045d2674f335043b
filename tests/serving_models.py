"""Small causal models of Transformers, recorded as they generate."""

from __future__ import annotations

import json
from pathlib import Path

from gpuwise.job.hf import hf_job
from gpuwise.serving.generation import Generation
from gpuwise.tracing.generation import record_generation

LONGEST = 512  # tokens of a sequence
SIZES = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1024}
EXPERTS = {
    "architectures": ["MiniMaxM2ForCausalLM"],
    "model_type": "minimax_m2",
    "intermediate_size": 128,
    "num_local_experts": 16,
    "num_experts_per_tok": 2,
    "head_dim": 32,
    "max_position_embeddings": LONGEST,
    **SIZES,
}


def generation_of(config: dict[str, object], folder: Path, *, tp: int = 1) -> Generation:
    """The model with this config.json, which is written into the folder, on one of `tp` devices."""
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return record_generation(hf_job(str(folder), seq_len=64), tp=tp, longest=LONGEST)
