"""`hf:` models cut into stages of a pipeline, against the arithmetic of Transformers' own class."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from gpuwise.api.sources import source_of  # noqa: E402
from gpuwise.job import resolve  # noqa: E402
from gpuwise.strategy import Mesh, Strategy  # noqa: E402

MICRO_BATCHES = 2
SIZES = {"vocab_size": 64, "max_position_embeddings": 32}
CONFIGS = {
    "LlamaForCausalLM": {
        "model_type": "llama",
        "num_key_value_heads": 2,
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        **SIZES,
    },
    "BartForConditionalGeneration": {
        "model_type": "bart",
        "d_model": 32,
        **{f"{side}_layers": 2 for side in ("encoder", "decoder")},
        **{f"{side}_attention_heads": 2 for side in ("encoder", "decoder")},
        **{f"{side}_ffn_dim": 64 for side in ("encoder", "decoder")},
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
        **SIZES,
    },
}


@pytest.mark.parametrize("architecture", CONFIGS)
def test_stages_multiply_what_the_whole_model_does(tmp_path, architecture):
    """Masks of Transformers read a value, which a dry run over stages has to answer."""
    (tmp_path / "config.json").write_text(json.dumps({**CONFIGS[architecture], "architectures": [architecture]}))
    name = f"hf:{tmp_path}"
    job = resolve(name)
    batch = job.batch(3)
    with FlopCounterMode(display=False) as counted, sdpa_kernel(SDPBackend.MATH):  # it does not count the CPU's fused attention
        job.loss(job.model(), batch).backward()
    source = source_of(name)
    strategy = Strategy(mesh=Mesh(pp=2), micro_batch=3, accumulation=MICRO_BATCHES)
    stages = [source.rank_step(strategy, "cpu", rank) for rank in (0, 1)]
    assert sum(stage.model_flops for stage in stages) == MICRO_BATCHES * counted.get_total_flops()
    assert all(stage.model_flops > 0.2 * counted.get_total_flops() for stage in stages)
