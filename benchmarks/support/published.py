"""Published end-to-end results as cases: a job, a strategy and a chip of ours, and the seconds a step was measured to take.

Only rows that gpuwise can express are taken: eager PyTorch, one device or data parallel. `family_of` records a job on
the virtual accelerator (it needs PyTorch, transformers or timm) and keeps the recording in a cache folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import pandas as pd

from benchmarks.support.reference import KEPT_OUT_DEVICES, kept_out_model
from gpuwise.strategy import Mesh, Strategy
from gpuwise.trace import TraceFamily, load, save

CHIPS = {
    "A100-80GB-SXM": "a100-80gb-sxm",
    "A100-40GB-SXM": "a100-40gb-sxm",
    "A100-40GB-SXM (AWS p4)": "a100-40gb-sxm",
    "A100-80GB-PCIe": "a100-80gb-pcie",
    "A100-40GB-PCIe": "a100-40gb-pcie",
    "H100-80GB-SXM": "h100-80gb-sxm",
    "H100-80GB-PCIe": "h100-80gb-pcie",
    "A100-40GB": "a100-40gb-sxm",
    "A100-80GB": "a100-80gb-sxm",
    "H100-80GB": "h100-80gb-sxm",
    "V100-16GB": "v100-sxm2-16gb",
    "V100-32GB": "v100-sxm2-32gb",
    "V100-32GB-PCIe": "v100-pcie-32gb",
    "T4": "t4",
    "P4-8GB": "p4",
    "L4-24GB": "l4",
    "MI210": "mi210",
    "MI100": "mi100",
    "RTX3090": "rtx-3090",
    "RTX4090": "rtx-4090",
    "RTX3080": "rtx-3080",
    "RTX3070": "rtx-3070",
    "RTX2080Ti": "rtx-2080-ti",
    "TITAN-RTX": "titan-rtx",
    "GTX1080Ti": "gtx-1080-ti",
    "RTX-A6000": "rtx-a6000",
    "RTX-A5000": "rtx-a5000",
    "RTX-A4000": "rtx-a4000",
    "QuadroRTX6000": "quadro-rtx-6000",
    "A40-48GB": "a40",
    "A10-24GB": "a10",
    "RTX6000-Ada": "rtx-6000-ada",
}
TIMM_CHIPS = {
    "rtx3090": "rtx-3090",
    "rtx4090": "rtx-4090",
    "4090": "rtx-4090",
    "i9_10940x": "i9-10940x",
    "pro6000maxq": "rtx-pro-6000-blackwell-max-q",
}
# Common vision models of several families, one size each.
TIMM_MODELS = (
    "resnet50",
    "resnet18",
    "resnet152",
    "vit_base_patch16_224",
    "vit_small_patch16_224",
    "convnext_base",
    "efficientnet_b0",
    "efficientnet_b4",
    "mobilenetv3_large_100",
    "densenet121",
    "swin_tiny_patch4_window7_224",
    "regnety_032",
    "vgg16",
    "inception_v3",
    "mixer_b16_224",
    "deit_tiny_patch16_224",
    "resnext50_32x4d",
    "tf_efficientnetv2_s",
    "rexnet_100",
    "seresnet50",
    "cspresnet50",
    "mobilenetv2_100",
    "convnext_tiny",
    "beit_base_patch16_224",
    "nfnet_l0",
    "res2net50_26w_4s",
    "wide_resnet50_2",
    "regnetx_016",
    "resnet152d",
    "vgg11",
    "densenet201",
    "seresnext101_32x4d",
    "regnety_120",
    "regnetz_d32",
)


@dataclass(frozen=True)
class Case:
    """One published row. job: what `job_of` understands; seq_len or image_size goes to the trace."""

    subset: str
    job: str
    strategy: Strategy
    size: tuple[tuple[str, int], ...]
    chip_id: str
    count: int
    machines: int
    seconds: float

    @property
    def kept_out(self) -> bool:
        """Never seen by a fit: a kept-out device, or a kept-out model."""
        return self.chip_id in KEPT_OUT_DEVICES or kept_out_model(self.job.removeprefix("timm:"))


def cases(folder: Path) -> Iterator[Case]:
    published = pd.read_csv(folder / "published" / "end_to_end.csv", low_memory=False)
    published["subsets"] = published.subsets.astype(str)
    yield from _lambda(published)
    yield from _transformers_fp32(published)
    yield from _mpt(published)
    yield from _timm(folder)


def _lambda(table: pd.DataFrame) -> Iterator[Case]:
    """ResNet-50 training and BERT-large question answering, NVIDIA's DeepLearningExamples on 1 to 8 GPUs of a machine."""
    table = table[table.subsets.str.contains("lambda_(?:single|multi)_gpu") & table.step_time_s.notna()]
    table = table[table.num_gpus.between(1, 8) & (table.batch_per_gpu > 0)]
    for row in table.itertuples():
        job = {"ResNet-50 v1.5": "resnet50", "BERT-large SQuAD": "bert-large-qa"}.get(row.model)
        # In fp16 that BERT was cast as a whole (apex O2, softmax in half precision): another program than autocast's.
        if job and row.gpu in CHIPS and (job, row.precision) != ("bert-large-qa", "amp-fp16"):
            size = (("image_size", 224),) if job == "resnet50" else (("seq_len", 384),)
            count = int(row.num_gpus)
            subset = f"lambda {job}" + (f" on {count} GPUs" if count > 1 else "")
            strategy = Strategy(precision=row.precision, micro_batch=int(row.batch_per_gpu), mesh=Mesh(dp_replicate=count))
            yield Case(subset, job, strategy, size, CHIPS[row.gpu], count, 1, row.step_time_s)


def _transformers_fp32(table: pd.DataFrame) -> Iterator[Case]:
    """fp32 language models of transformers, eager attention (NeuSight's end-to-end runs)."""
    table = table[
        table.subsets.str.contains("fp32_transformers") & ~table.compile_or_fused_notes.str.contains("compile", na=False)
    ]
    for row in table.itertuples():
        if (
            row.model in ("bert_large", "gpt2_large", "opt_13", "gpt3_27")
            and row.gpu in CHIPS
            and row.batch_per_gpu > 0
            and row.step_time_s > 0
        ):
            mode = "train" if row.task == "train" else "infer"
            strategy = Strategy(precision="fp32", micro_batch=int(row.batch_per_gpu), mode=mode)
            yield Case(
                f"fp32 transformers {mode}",
                f"hf-{row.model}",
                strategy,
                (("seq_len", int(row.seq_len)),),
                CHIPS[row.gpu],
                1,
                1,
                row.step_time_s,
            )


def _mpt(table: pd.DataFrame) -> Iterator[Case]:
    """MPT decoders under FSDP on 8 to 128 GPUs (llm-foundry)."""
    table = table[table.subsets.str.contains("llm_train_fsdp_mpt") & table.precision.isin(["amp-bf16", "bf16"])]
    for row in table.itertuples():
        devices, seq_len = int(row.num_gpus), int(row.seq_len)
        micro_batch = int(row.batch_per_gpu)
        accumulation = round(row.global_batch / (micro_batch * devices))
        if accumulation < 1 or accumulation * micro_batch * devices != row.global_batch:
            continue
        strategy = Strategy(
            precision="amp-bf16",
            micro_batch=micro_batch,
            accumulation=accumulation,
            recompute="full" if row.recompute == "full" else "none",
            mesh=Mesh(dp_shard=devices),
        )
        yield Case(
            "MPT FSDP",
            f"mpt-{row.model.split('-')[1]}",
            strategy,
            (("seq_len", seq_len),),
            CHIPS[row.gpu],
            min(8, devices),
            max(1, devices // 8),
            row.step_time_s,
        )


def _timm(folder: Path) -> Iterator[Case]:
    """Vision models in PyTorch's default layout, training and inference, eager on GPUs."""
    table = pd.read_parquet(folder / "published" / "timm.parquet")
    # The CPU has compiled rows only, of one image: there the gain is small.
    table = table[(~table.compiled | (table.device == "i9_10940x")) & (table.layout == "nchw")]
    table = table[table.model.isin(TIMM_MODELS) & table.device.isin(TIMM_CHIPS)]
    for row in table.itertuples():
        precision = {"amp": "amp-fp16", "amp_bf16": "amp-bf16", "fp32": "fp32"}.get(row.precision)
        if precision:
            subset = f"timm {row.task}" + (" on a CPU" if row.device == "i9_10940x" else "")
            strategy = Strategy(precision=precision, micro_batch=int(row.batch), mode=row.task)
            size = (("image_size", int(row.image_size)),)
            yield Case(subset, f"timm:{row.model}", strategy, size, TIMM_CHIPS[row.device], 1, 1, row.step_ms / 1e3)


# --- recording ---


def family_of(case: Case, cache: Path) -> TraceFamily:
    """The case's job recorded for any micro-batch, from the cache where it is there."""
    from gpuwise.trace.sharded import recorded_as

    strategy = recorded_as(case.strategy)
    size = "-".join(f"{name}{value}" for name, value in case.size)
    name = f"{case.job}-{size}-{strategy.precision}-{strategy.recompute}-{strategy.mode}".replace("/", "_").replace(":", "_")
    path = cache / f"{name}.npz"
    if not path.exists():
        from gpuwise.tracing.family import trace_family

        family = trace_family(job_of(case.job, dict(case.size)), strategy.but(micro_batch=2, accumulation=1, mesh=Mesh()))
        cache.mkdir(parents=True, exist_ok=True)
        save(family, path)
    return _load(path)


@lru_cache(maxsize=256)
def _load(path: Path) -> TraceFamily:
    family = load(path)
    assert isinstance(family, TraceFamily)
    return family


def job_of(name: str, sizes: dict[str, int]):  # type: ignore[no-untyped-def]
    """A gpuwise Job: a preset, a timm model, or one of the published models that are neither."""
    from gpuwise.job import resolve
    from gpuwise.job.models.gpt2 import Gpt2, Gpt2Config
    from gpuwise.job.models.language import token_loss

    # hidden, layers, heads of MPT (mosaicml/llm-foundry)
    mpt = {
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
    seq_len = sizes.get("seq_len", 0)
    if name.startswith("mpt-"):
        width, layers, heads = mpt[name.removeprefix("mpt-")]
        config = Gpt2Config(vocabulary=50_368, positions=seq_len, width=width, layers=layers, heads=heads, dropout=0.0)
        return _token_job(name, partial(Gpt2, config), token_loss, vocabulary=config.vocabulary, seq_len=seq_len)
    if name.startswith("hf-") or name == "bert-large-qa":
        return _transformers_job(name, seq_len)
    return resolve(name, image_size=sizes.get("image_size"))


def _transformers_job(name: str, seq_len: int):  # type: ignore[no-untyped-def]
    import torch.nn.functional as F

    from gpuwise.job.torchvision_cpu import make_importable

    make_importable()  # transformers imports torchvision where it is installed
    import transformers as tf


    if name == "bert-large-qa":
        config = tf.BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
        model = partial(tf.BertForQuestionAnswering, config)
    elif name == "hf-bert_large":
        config = tf.BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
        model = partial(tf.BertForMaskedLM, config)
    elif name == "hf-opt_13":
        config = tf.OPTConfig(hidden_size=2048, num_hidden_layers=24, num_attention_heads=32, ffn_dim=8192, use_cache=False)
        model = partial(tf.OPTForCausalLM, config)
    else:
        width, layers, heads = {"hf-gpt2_large": (1280, 36, 20), "hf-gpt3_27": (2560, 32, 32)}[name]
        config = tf.GPT2Config(n_embd=width, n_layer=layers, n_head=heads, n_positions=max(1024, seq_len), use_cache=False)
        model = partial(tf.GPT2LMHeadModel, config)
    config._attn_implementation = "eager"

    def loss(module, batch):  # type: ignore[no-untyped-def]
        if name == "bert-large-qa":
            labels = batch["labels"]
            return module(batch["tokens"], start_positions=labels[:, 0], end_positions=labels[:, 1]).loss
        logits = module(batch["tokens"]).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), batch["labels"].flatten())

    return _token_job(name, model, loss, vocabulary=config.vocab_size, seq_len=seq_len)


def _token_job(name, model, loss, *, vocabulary: int, seq_len: int):  # type: ignore[no-untyped-def]
    from gpuwise.job import Job
    from gpuwise.job.models.language import next_token_batch

    batch = partial(next_token_batch, vocabulary=vocabulary, seq_len=seq_len)
    return Job(model, batch, loss, name=name, sample_unit="token", tokens_per_sample=seq_len, seq_len=seq_len)
