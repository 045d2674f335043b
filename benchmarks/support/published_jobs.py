"""Published models as gpuwise jobs: presets, timm models, and those of benchmarks/zoo. Needs PyTorch and transformers.

What was timed is followed where it is public: NeuSight's language models (neusight/Tracing/trace.py of sitar-lab/NeuSight:
eager attention; BERT classifies in inference and is pretrained in training), Lambda's runs of NVIDIA's DeepLearningExamples
(lambdal/deeplearning-benchmark, logs under pytorch/results: apex O2 in half precision, Transformer-XL with the whole softmax).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.zoo.master_adam import MasterAdam
from benchmarks.zoo.registry import build, has
from gpuwise.job import Job, resolve
from gpuwise.job.models.gpt2 import Gpt2, Gpt2Config
from gpuwise.job.models.language import next_token_batch, token_loss
from gpuwise.job.torchvision_cpu import make_importable

# hidden, layers, heads of MPT (mosaicml/llm-foundry)
MPT = {
    "125m": (768, 12, 12),
    "350m": (1024, 24, 16),
    "760m": (1536, 24, 12),
    "1b": (2048, 24, 16),
    "3b": (2560, 32, 20),
    "7b": (4096, 32, 32),
    "13b": (5120, 40, 40),
    "30b": (7168, 48, 56),
    "70b": (8192, 80, 64),
}
GPT = {"hf-gpt2_large": (1280, 36, 20), "hf-gpt3_27": (2560, 32, 32)}  # the same of NeuSight's


def job_of(name: str, sizes: dict[str, int], *, half: bool = False, fast_norm: bool = False) -> Job:
    """A gpuwise Job: a preset, a timm model, or one of the zoo.

    half: the whole model in half precision with fp32 copies of its parameters, as apex's O2 ran it. fast_norm: of timm, norms
    that stay in half precision under autocast.
    """
    seq_len = sizes.get("seq_len", 0)
    family = name.split("-")[0]
    if family == "mpt":
        width, layers, heads = MPT[name.removeprefix("mpt-")]
        config = Gpt2Config(vocabulary=50_368, positions=seq_len, width=width, layers=layers, heads=heads, dropout=0.0)
        return _token_job(name, partial(Gpt2, config), token_loss, vocabulary=config.vocabulary, seq_len=seq_len)
    if has(name):
        return build(name, sizes, half=half)
    if family == "hf" or name == "bert-large-qa":
        return _transformers(name, seq_len, half=half)
    job = resolve(name, image_size=sizes.get("image_size"), seq_len=sizes.get("seq_len"))
    return replace(job, model=partial(_with_fast_norm, job.model)) if fast_norm else job


def _with_fast_norm(make: Callable[[], nn.Module]) -> nn.Module:
    """The model with timm's own norms in half precision under autocast, as `benchmark.py --fast-norm` of timm has them.

    They are set on the model that was made: a hybrid runs its backbone while it is made, on a device without autocast.
    """
    model = make()
    for module in model.modules():
        if hasattr(module, "_fast_norm"):
            module._fast_norm = True
    return model


def _transformers(name: str, seq_len: int, *, half: bool) -> Job:
    make_importable()  # transformers imports torchvision where it is installed
    import transformers as tf

    if "bert" in name:
        config = tf.BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
        heads = {"bert-large-qa": tf.BertForQuestionAnswering, "hf-bert_large-classify": tf.BertForSequenceClassification}
        model = partial(heads.get(name, tf.BertForPreTraining), config)
    elif name == "hf-opt_13":
        config = tf.OPTConfig(hidden_size=2048, num_hidden_layers=24, num_attention_heads=32, ffn_dim=8192, use_cache=False)
        model = partial(tf.OPTForCausalLM, config)
    else:
        width, layers, heads = GPT[name]
        config = tf.GPT2Config(n_embd=width, n_layer=layers, n_head=heads, n_positions=max(1024, seq_len), use_cache=False)
        model = partial(tf.GPT2LMHeadModel, config)
    config._attn_implementation = "eager"

    def loss(module, batch):  # type: ignore[no-untyped-def]
        labels = batch["labels"]
        if "bert" not in name:
            return F.cross_entropy(module(batch["tokens"]).logits.flatten(0, 1).float(), labels.flatten())
        # Added to the scores of every layer, as older transformers did with any mask and with none.
        mask = torch.zeros(labels.shape[0], 1, 1, seq_len, device=labels.device, dtype=module.dtype)
        out = module(batch["tokens"], attention_mask=mask)
        if name == "bert-large-qa":
            ends = (out.start_logits, labels[:, 0]), (out.end_logits, labels[:, 1])
            return sum(F.cross_entropy(logits, at.clamp(max=seq_len - 1)) for logits, at in ends) / 2
        if name == "hf-bert_large-classify":
            return out.logits.sum()
        return F.cross_entropy(out.prediction_logits.flatten(0, 1), labels.flatten())

    return _token_job(name, model, loss, vocabulary=config.vocab_size, seq_len=seq_len, half=half)


def _token_job(name, model, loss, *, vocabulary: int, seq_len: int, half: bool = False) -> Job:  # type: ignore[no-untyped-def]
    return Job(
        model,
        partial(next_token_batch, vocabulary=vocabulary, seq_len=seq_len),
        loss,
        optimizer=partial(MasterAdam, fused=True) if half else "adamw",
        name=name,
        sample_unit="token",
        tokens_per_sample=seq_len,
        seq_len=seq_len,
    )
