"""Prompt time and time a token of one batch, and what gpuwise forecasts: Llama-2-70B on A100 and H100, vLLM of 2023."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pandas as pd

from benchmarks.serving.models import generation_of
from benchmarks.serving.page import error_row
from gpuwise.api.devices import device_of
from gpuwise.hardware import load_catalog
from gpuwise.serving.engines import engine_of
from gpuwise.serving.sharing import Degrees
from gpuwise.serving.step_time import EngineStep

DEVICES = {"A100 SXM 80GB": "a100-80gb-sxm", "H100 SXM": "h100-80gb-sxm"}
ENGINE, FITTED = "vllm-2023", "A100 SXM 80GB"


@lru_cache
def _step(device: str, family: str, tp: int) -> EngineStep:
    generation = generation_of(family).shared(Degrees(tp=tp, expert_tp=tp))
    cluster = device_of(f"{DEVICES[device]}:{tp}", load_catalog()).cluster
    return EngineStep(generation, cluster, costs=engine_of(ENGINE).costs)


def phase_rows(reference: Path) -> pd.DataFrame:
    """Forecast over measured prompt and token times of the rows without a cap on power, in the columns of errors."""
    table = pd.read_csv(reference / "serving" / "phases.csv")
    rows = []
    for row in table[table.power_cap.isna() & table.device.isin(DEVICES)].itertuples():
        step = _step(row.device, row.family, int(row.tp))
        batch, read, written = int(row.batch_size), int(row.input_tokens), int(row.output_tokens)
        forecast = {
            "prompt_s": step([(read, 0)] * batch, 0, 0),
            "token_s": step((), batch, round(batch * (read + written / 2))),
        }
        for name, measured in (("prompt_s", row.prompt_ms / 1e3), ("token_s", row.token_ms / 1e3)):
            spread, fitted = engine_of(ENGINE).spread, row.device == FITTED
            rows.append(error_row(name, forecast[name] / measured, spread, fitted=fitted, device=row.device))
    return pd.DataFrame(rows)
