"""How rows of published tables become cases: made-up rows in the form of the tables."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from benchmarks.other_systems import published_rows
from benchmarks.support.bridge_cases import BridgeCase, bridge_cases
from benchmarks.support.bridge_precision import CURRENT_BLACKWELL, MXFP8, NVFP4

from gpuwise.hardware.catalog import load_catalog

BRIDGE = {
    "subsets": "llm_train_megatron_hopper_blackwell:gold",
    "model": "LLAMA3.1_405B",
    "gpu": "GB200",
    "num_gpus": 128,
    "batch_per_gpu": 1,
    "global_batch": 64,
    "seq_len": 8192,
    "date_or_commit": "abc; 25.11 NeMo Container",
    "step_time_s": 5.0,
}
MIST = {
    "system_source": "Mist artifact (aceso)",
    "hidden": 256,
    "layers": 8,
    "heads": 4,
    "seq": 128,
    "gpu": "NVIDIA L4",
    "tp": "1",
    "pp": 4,
    "dp": 1,
    "micro_batch": 1.0,
    "global_batch": 64.0,
    "activation_recompute": "partial(0.40 of ops)",
    "zero_stage": 0.0,
    "measured_step_time_s": 2.0,
}


def folder(path: Path, name: str, rows: list[dict[str, object]]) -> Path:
    (path / "published").mkdir()
    pd.DataFrame(rows).to_csv(path / "published" / name, index=False)
    return path


@pytest.mark.parametrize(
    ("precision", "label", "notes", "low"),
    [
        ("bf16", "BF16", "", None),
        ("fp8", "FP8-CS (FP8-MX)", "first value", CURRENT_BLACKWELL),
        ("fp8", "FP8-CS (FP8-MX)", "value in parentheses", MXFP8),
        ("fp4", "NVFP4", "", NVFP4),
    ],
)
def test_a_row_of_megatron_bridge(tmp_path: Path, precision: str, label: str, notes: str, low: object) -> None:
    row = {
        **BRIDGE,
        "precision": precision,
        "parallelism": "fsdp0 tp4 pp8 cp2 vp8 ep1",
        "compile_or_fused_notes": f"precision label {label}",
        "notes": notes,
    }
    (case,) = bridge_cases(folder(tmp_path, "end_to_end.csv", [row]))
    assert isinstance(case, BridgeCase)
    assert case.options.low == low
    assert str(case.strategy.mesh) == "dp_shard=2,tp=4,pp=8,cp=2"
    assert case.strategy.accumulation == 32
    assert case.strategy.parallelism.stages_per_rank == 8
    assert case.shape.seq_len == 4096
    assert case.release == "25.11"
    cluster = case.cluster(load_catalog())
    assert (cluster.devices_per_machine, cluster.machines) == (64, 2)


def test_a_model_that_is_not_here_says_why(tmp_path: Path) -> None:
    row = {**BRIDGE, "model": "Other", "precision": "bf16", "parallelism": "tp1"}
    (why,) = bridge_cases(folder(tmp_path, "end_to_end.csv", [row]))
    assert isinstance(why, str)
    assert why.startswith("Other")


def test_rows_of_other_systems(tmp_path: Path) -> None:
    zero = {**MIST, "system_source": "llm-analysis / Megatron-LM paper", "gpu": "A100-SXM4-80GB", "pp": 1, "dp": 16}
    zero |= {"global_batch": 64.0, "zero_stage": 3.0, "activation_recompute": "full"}
    rows = list(published_rows(folder(tmp_path, "distributed.csv", [MIST, {**MIST, "tp": "mixed"}, zero])))
    assert rows[1] is None
    assert rows[0] is not None
    assert rows[0].again == 0.4
    assert (str(rows[0].case.strategy.mesh), rows[0].case.strategy.accumulation) == ("pp=4", 64)
    assert rows[2] is not None
    assert (rows[2].case.group, rows[2].again, str(rows[2].case.strategy.mesh)) == ("ZeRO-3", 1.0, "dp_shard=16")
