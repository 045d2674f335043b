"""The training steps of memory/cpu_ground_truth.csv, rebuilt: measured elsewhere under PyTorch 2.13's profiler."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from benchmarks.memory_on_cpu import Row, predicted_bytes
from gpuwise.job import Job, resolve
from gpuwise.job.torchvision_cpu import make_importable
from gpuwise.strategy import Strategy

PRECISION = {"fp32": "fp32", "amp-bfloat16": "amp-bf16"}
OPTIMIZER = {"AdamW": "adamw", "SGD": "momentum"}


def rows(reference: Path) -> tuple[list[Row], int]:
    """Every row but the MLP's, whose layers the table does not say; and how many those are."""
    table = pd.read_csv(reference / "memory" / "cpu_ground_truth.csv")
    known = table[table.model != "mlp"]
    results = []
    for row in known.itertuples():
        strategy = Strategy(
            precision=PRECISION[str(row.precision)],
            micro_batch=int(row.batch),
            optimizer=OPTIMIZER[str(row.optimizer)],
            optimizer_kernels=_kernels(row),
        )
        size = int(row.seq_or_image)
        job = resolve("resnet50", image_size=size) if row.model == "resnet50" else _bert(row, size)
        notes = [str(row.attention)] if row.model == "bert_base" else []
        notes += ["mask"] if row.mask else []
        name = ", ".join([f"{row.model}, {row.batch} × {size}", strategy.precision, str(row.optimizer), _kernels(row), *notes])
        results.append(Row(name, predicted_bytes(job, strategy), int(row.measured_peak_bytes), row.model == "resnet50"))
    return results, len(table) - len(known)


def _kernels(row: Any) -> str:
    """PyTorch's own choice on a CPU is the loop."""
    return next((name for name in ("foreach", "fused") if name in str(row.optimizer_args)), "for-loop")


def _bert(row: Any, seq_len: int) -> Job:
    make_importable()
    import transformers

    config = transformers.BertConfig()
    config._attn_implementation = str(row.attention)

    def batch(n: int) -> dict[str, Tensor]:
        tokens = torch.randint(0, config.vocab_size, (n, seq_len))
        made = {"input_ids": tokens, "labels": tokens.clone()}
        return {**made, "attention_mask": torch.ones_like(tokens)} if row.mask else made

    def loss(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        return model(**inputs).loss  # type: ignore[no-any-return]

    return Job(partial(transformers.BertForMaskedLM, config), batch, loss, name="bert_base")
