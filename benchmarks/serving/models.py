"""Models of published serving runs, from the figures of their config.json."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from gpuwise.job.hf import hf_job
from gpuwise.serving.generation import Generation
from gpuwise.serving.sharing import Degrees
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
_TIED = {"tie_word_embeddings": True}
_QWEN2 = {
    **_LLAMA,
    **_TIED,
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": 151_936,
    "rms_norm_eps": 1e-6,
}


def _sizes(hidden: int, layers: int, heads: int, intermediate: int, *, keys: int = 8) -> dict[str, object]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "intermediate_size": intermediate,
    }


def _qwen3(hidden: int, layers: int, heads: int, intermediate: int, *, tied: bool = True) -> dict[str, object]:
    return {
        **_QWEN2,
        **_sizes(hidden, layers, heads, intermediate),
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "head_dim": 128,
        "max_position_embeddings": 40_960,
        "tie_word_embeddings": tied,
    }


# By the word that the tables use for all weights of one architecture.
CONFIGS: dict[str, dict[str, object]] = {
    "llama-3-8b": {**_LLAMA, "vocab_size": 128_256},
    "llama-2-7b": {**_LLAMA, "vocab_size": 32_000, "num_key_value_heads": 32, "intermediate_size": 11_008},
    "llama-68m": {**_LLAMA, **_sizes(768, 2, 12, 3072, keys=12), "vocab_size": 32_000},
    "mistral-7b": {**_LLAMA, "vocab_size": 32_000},
    "qwen3-32b": _qwen3(5120, 64, 64, 25_600, tied=False),
    "llama-3-70b": {**_LLAMA, **_sizes(8192, 80, 64, 28_672), "vocab_size": 128_256},
    "llama-3-405b": {**_LLAMA, **_sizes(16_384, 126, 128, 53_248), "vocab_size": 128_256},
    "llama-3.2-1b": {**_LLAMA, **_sizes(2048, 16, 32, 8192), "head_dim": 64, "vocab_size": 128_256, **_TIED},
    "llama-3.2-3b": {**_LLAMA, **_sizes(3072, 28, 24, 8192), "head_dim": 128, "vocab_size": 128_256, **_TIED},
    "mistral-nemo-12b": {**_LLAMA, **_sizes(5120, 40, 32, 14_336), "head_dim": 128, "vocab_size": 131_072},
    "phi-3.5-mini": {**_LLAMA, **_sizes(3072, 32, 32, 8192, keys=32), "vocab_size": 32_064},
    "qwen2-0.5b": {**_QWEN2, **_sizes(896, 24, 14, 4864, keys=2)},
    "qwen2-1.5b": {**_QWEN2, **_sizes(1536, 28, 12, 8960, keys=2)},
    "qwen3-0.6b": _qwen3(1024, 28, 16, 3072),
    "qwen3-4b": _qwen3(2560, 36, 32, 9728),
    "qwen3-14b": _qwen3(5120, 40, 40, 17_408, tied=False),
    "qwen2.5-14b": {**_QWEN2, **_sizes(5120, 48, 40, 13_824), "vocab_size": 152_064, "tie_word_embeddings": False},
    "phi-4": {**_LLAMA, **_sizes(5120, 40, 40, 17_920, keys=10), "vocab_size": 100_352},
    "phi-4-mini": {**_LLAMA, **_sizes(3072, 32, 24, 8192), "vocab_size": 200_064, **_TIED},
    "mistral-small-24b": {**_LLAMA, **_sizes(5120, 40, 32, 32_768), "head_dim": 128, "vocab_size": 131_072},
}

# Mixtures of experts: Transformers' defaults are those of MiniMax-M2, GLM-5 and GLM-4.5-Air. Kimi-K2.5's text model is Kimi-K2
# (technical report, arXiv:2507.20534), Qwen3.5-397B-A17B's figures are those of its model card.
CONFIGS |= {
    "minimax-m2.5": {"architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2"},
    "glm-5": {"architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa"},
    "glm-4.5-air": {"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe"},
    "kimi-k2.5": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "vocab_size": 163_840,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "n_routed_experts": 384,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 2.827,
        "max_position_embeddings": 262_144,
    },
    "qwen3.5-397b-a17b": {
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 4096,
        "num_hidden_layers": 60,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "moe_intermediate_size": 1024,
        "shared_expert_intermediate_size": 1024,
        "linear_num_value_heads": 64,
        "linear_num_key_heads": 16,
        "max_position_embeddings": 262_144,
    },
    "gpt-oss-20b": {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "num_hidden_layers": 24,
        "num_local_experts": 32,
    },
    "gpt-oss-120b": {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss"},
    "qwen3-30b-a3b": {
        **_qwen3(2048, 48, 32, 6144, tied=False),
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    },
    "deepseek-v2-lite": {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "hidden_size": 2048,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "q_lora_rank": None,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 1408,
        "intermediate_size": 10_944,
        "first_k_dense_replace": 1,
        "vocab_size": 102_400,
        "max_position_embeddings": 163_840,
    },
    "llama-2-70b": {**_LLAMA, **_sizes(8192, 80, 64, 28_672), "vocab_size": 32_000},
    # A hybrid of Mamba-2 (M), perceptrons (-) and attention (*): its technical report (arXiv:2508.14444) and its config.json.
    "nvidia-nemotron-nano-9b": {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
        "hidden_size": 4480,
        "intermediate_size": 15_680,
        "num_attention_heads": 40,
        "mamba_head_dim": 80,
        "max_position_embeddings": 131_072,
    },
}


@lru_cache
def generation_of(family: str, *, tp: int = 1, precision: str = "bf16", target: str = "accelerator") -> Generation:
    """How a model of this family generates on one of `tp` devices that share its layers."""
    if tp > 1:
        return generation_of(family, precision=precision, target=target).shared(Degrees(tp=tp, expert_tp=tp))
    with TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(CONFIGS[family]), encoding="utf-8")
        job = hf_job(folder, seq_len=128)
        return record_generation(job, precision=precision, target=target, longest=job.context_length)
