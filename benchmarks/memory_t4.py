"""Memory of LoRA and QLoRA steps: forecasts against measurements on a real Tesla T4.

    python -m benchmarks.memory_t4 --reference FOLDER [--only TEXT]

The rows of memory/t4_finetune.csv were measured by fitcheck-llm 0.3.1 (MIT; scripts/measure.py of Anassbzdd/fitcheck), each
in a process of its own: a Hugging Face model in fp16, peft's LoRA in fp32, checkpointing of every layer, PyTorch's AdamW;
one step before the measured one. Each row is rebuilt here from its configuration alone and forecast for the catalog's T4;
nothing is fitted to the rows. `step` is allocated less resident: what the step itself adds.

The nf4 rows are loaded as support/transformers_loading.py says, one weight after another. Transformers 5.0 copied the next
ones in threads meanwhile, in an order that cannot be rebuilt; blocks that are not split keep up to 1 MiB each. The same
model's resident memory differs by 1.5 MiB between two of the three rows, so one of them at least was loaded in another order.

Needs transformers, peft and, for the nf4 rows, bitsandbytes.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from benchmarks.support.phase_memory import phase_bytes
from benchmarks.support.transformers_loading import Loaded, loading_of
from gpuwise.cost.memory.device import memory_forecast
from gpuwise.cost.parameters import parameters
from gpuwise.hardware.catalog import load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.job import Job
from gpuwise.job.torchvision_cpu import make_importable
from gpuwise.runtime.build.adapters import in_4_bits
from gpuwise.strategy import Strategy
from gpuwise.trace import Trace
from gpuwise.tracing import record

MIB = 2**20
TARGET = "pre-ampere"
ATTENTION = {"eager": "eager", "flash": "expanded_sdpa"}
# Columns of the table, of a row's forecast and of the file, in MiB.
COLUMNS = {
    "resident": "resident_before_step_mib",
    "forward": "peak_forward_mib",
    "backward": "peak_backward_mib",
    "optimizer": "peak_optimizer_mib",
    "allocated": "peak_allocated_mib",
    "reserved": "peak_reserved_mib",
    "device": "process_mib",
}
ERRORS = (*COLUMNS, "step")


@dataclass(frozen=True)
class Row:
    """One measurement, and its forecast: each of COLUMNS. adapter: lora | qlora."""

    name: str
    adapter: str
    forecast_mib: dict[str, float]
    measured_mib: dict[str, float]

    def error(self, column: str) -> float:
        ours, theirs = (
            mib[column] if column in mib else mib["allocated"] - mib["resident"]
            for mib in (self.forecast_mib, self.measured_mib)
        )
        return ours / theirs - 1


def rows(reference: Path, only: str = "") -> Iterator[Row]:
    """Every row of the file, forecast; only: those whose name contains this text."""
    table = pd.read_csv(reference / "memory" / "t4_finetune.csv", keep_default_na=False)
    named = [(name_of(configuration), configuration) for configuration in table.to_dict("records")]
    return (_row(name, configuration) for name, configuration in named if only.lower() in name.lower())


def name_of(row: dict[str, Any]) -> str:
    method = "LoRA" if row["quantization"] == "none" else "QLoRA"
    return f"{row['model'].split('/')[-1]} {method} {row['attention']} {row['batch']}x{row['seq']}"


def _row(name: str, row: dict[str, Any]) -> Row:
    adapter = "lora" if row["quantization"] == "none" else "qlora"
    return Row(name, adapter, forecast_mib(trace_of(row)), {ours: float(row[theirs]) for ours, theirs in COLUMNS.items()})


def trace_of(row: dict[str, Any]) -> Trace:
    """The measured step, with the loading of its model before it where that leaves other segments than the model needs."""
    trace = record(job_of(row), Strategy(micro_batch=row["batch"]), target=TARGET)
    if row["quantization"] == "none":
        return trace
    with torch.device("meta"):
        model = _transformers_model(row)
    targets = row["lora_targets"].split()
    loaded = Loaded(model, _in_4_bits(model), double_quantized=False, adapter_rank=row["lora_rank"], adapted=targets)
    return replace(trace, loading=loading_of(loaded))


def forecast_mib(trace: Trace) -> dict[str, float]:
    """The forecast for a T4, and from the same replayed allocator what it holds before a step and at most in each phase."""
    chip, figures = load_catalog().chip("t4"), parameters()
    memory = memory_forecast(trace, Cluster(chip), parameters=figures)
    return {
        name: float(size) / MIB
        for name, size in {
            **phase_bytes(trace, chip),
            "allocated": memory.peak_allocated_bytes,
            "reserved": memory.peak_reserved_bytes,
            "device": memory.device_bytes,
        }.items()
    }


def job_of(row: dict[str, Any]) -> Job:
    """The measured step. Its script keeps the model's output, logits and all, until the optimizer has stepped."""
    outputs: list[Any] = []

    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        outputs.append(model(input_ids=batch["tokens"], labels=batch["tokens"]))
        return outputs[-1].loss

    def optimizer(trainable: Any) -> torch.optim.Optimizer:
        made = torch.optim.AdamW(trainable, lr=1e-4, foreach=True)  # what it takes on a GPU
        made.register_step_post_hook(lambda *_: outputs.clear())
        return made

    batch = partial(_tokens, vocabulary=row["vocab_size"], seq_len=row["seq"])
    return Job(model=partial(_model, row), batch=batch, loss=loss, optimizer=optimizer, name=name_of(row))


def _tokens(n: int, *, vocabulary: int, seq_len: int) -> dict[str, torch.Tensor]:
    return {"tokens": torch.randint(0, vocabulary, (n, seq_len))}


def _transformers_model(row: dict[str, Any]) -> Any:
    make_importable()
    import transformers

    _register_attention(transformers)
    make = transformers.Qwen2Config if "Qwen" in row["model"] else transformers.LlamaConfig
    fields = ("hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
    config = make(
        **{name: row[name] for name in fields},
        num_hidden_layers=row["num_layers"],
        num_key_value_heads=_kv_heads(row),
        max_position_embeddings=8192,
        use_cache=False,
        tie_word_embeddings=str(row["tie_word_embeddings"]) == "True",
    )
    return transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.float16, attn_implementation=ATTENTION[row["attention"]]
    )


def _in_4_bits(model: nn.Module) -> list[str]:
    """Paths of the layers that Transformers packs."""
    return [path for path, module in model.named_modules() if type(module) is nn.Linear and path != "lm_head"]


def _model(row: dict[str, Any]) -> nn.Module:
    model = _transformers_model(row)
    import peft

    if row["quantization"] == "nf4":
        in_4_bits(model, _in_4_bits(model), torch.float16, double_quantized=False)
        for parameter in model.parameters():  # as peft.prepare_model_for_kbit_training: the rest in fp32
            if type(parameter) is nn.Parameter:
                parameter.data = parameter.data.float()
    model = peft.get_peft_model(
        model,
        peft.LoraConfig(
            r=row["lora_rank"],
            lora_alpha=2 * row["lora_rank"],
            lora_dropout=0.0,
            bias="none",
            task_type="CAUSAL_LM",
            target_modules=row["lora_targets"].split(),
        ),
    )
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
    return model


def _kv_heads(row: dict[str, Any]) -> int:
    """Heads of keys and values, which the file leaves out, from its count of trainable parameters.

    A layer has adapters of rank x (inputs + outputs) on q, k, v and o; k and v have kv_heads x head_size outputs.
    """
    width = row["hidden_size"]
    sizes = row["trainable_params"] // (row["num_layers"] * row["lora_rank"])
    return (sizes - 6 * width) // 2 // (width // row["num_attention_heads"])


def _register_attention(transformers: Any) -> None:
    """SDPA with keys and values repeated for every head before it, as the script that measured did."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    def expanded(
        module: nn.Module,
        query: Any,
        key: Any,
        value: Any,
        mask: Any,
        scaling: float | None = None,
        dropout: float = 0.0,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        groups = query.shape[1] // key.shape[1]
        if groups > 1:
            key, value = (t.repeat_interleave(groups, dim=1) for t in (key, value))
        out = nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling
        )
        return out.transpose(1, 2).contiguous(), None

    name = ATTENTION["flash"]
    transformers.AttentionInterface.register(name, expanded)
    transformers.AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


def summary(found: list[Row]) -> list[str]:
    """One line a column and adapter: median and largest error."""
    lines = []
    for adapter in ("lora", "qlora"):
        for column in ERRORS:
            errors = [abs(row.error(column)) for row in found if row.adapter == adapter]
            if errors:
                lines.append(
                    f"{adapter:<6} {column:<10} median {statistics.median(errors):.4%}, largest {max(errors):.4%}, "
                    f"{len(errors)} rows"
                )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reference", type=Path, required=True, help="folder with memory/t4_finetune.csv")
    parser.add_argument("--only", default="", help="rows whose name contains this text")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    results = []
    print(f"{'MiB: forecast, measured, error':<44}" + "".join(f"{column:>28}" for column in COLUMNS))
    for row in rows(arguments.reference, arguments.only):
        results.append(row)
        cells = (f"{row.forecast_mib[c]:>9.1f} {row.measured_mib[c]:>9.1f} {row.error(c):>+8.3%}" for c in COLUMNS)
        print(f"{row.name:<44}" + "".join(cells), flush=True)
    print("\n".join(summary(results)))


if __name__ == "__main__":
    main()
