"""Energy of serving against published measurements.

    python -m benchmarks.serving.energy --reference FOLDER [--write]

ml-energy/leaderboard (0cd52da, 2026-02): vLLM on H100 and B200, dense language models in bf16 and fp8 at fixed numbers of
sequences. Each row is simulated: as many clients as sequences ran on average, who send their next request at once, with
answers of the published mean. The law of power was fitted to the measured powers and rates of these rows
(benchmarks.fit_power); the times of iterations were not. Prints errors of joules a token, and of the rate of tokens, on which
they rest; no figure of the table is written anywhere.
"""

from __future__ import annotations

import argparse
from functools import lru_cache
from pathlib import Path

import pandas as pd

from benchmarks.serving.models import CONFIGS, generation_of
from benchmarks.serving.page import publish, table_of
from gpuwise.api.devices import device_of
from gpuwise.cost.parameters import parameters
from gpuwise.hardware import load_catalog
from gpuwise.serving.continuous import serve
from gpuwise.serving.energy import computed_in, energy_spread, energy_use, work_of
from gpuwise.serving.engines import engine_of
from gpuwise.serving.formats import format_of, stored
from gpuwise.serving.instance import LoadShape
from gpuwise.serving.lengths import Lengths
from gpuwise.serving.step_time import EngineStep

DEVICES = {"H100": "h100-80gb-sxm", "B200": "b200-180gb-sxm"}
FORMATS = {"bfloat16": "", "fp8": "fp8"}
QUESTION_TOKENS = {"lm-arena-chat": 300, "gpqa": 300}  # read before the answer: assumed, the table has answers alone
ROUNDS = 2  # requests a client; all are equal, so that the batch stays full to the end
BEGIN, END = "<!-- energy: python -m benchmarks.serving.energy -->", "<!-- end of energy -->"


def rows_of(reference: Path) -> pd.DataFrame:
    """The rows that are simulated."""
    table = pd.read_csv(reference / "serving" / "energy.csv")
    dense = table.params_b == table.active_params_b
    text = table.task.isin(QUESTION_TOKENS) & table.family.isin(CONFIGS) & table.precision.isin(FORMATS)
    alone = (table.dp.fillna(1) == 1) & (table.devices == table.tp) & (table.batch_size > 0)
    return table[dense & text & alone & table.device.isin(DEVICES)].reset_index(drop=True)


@lru_cache
def step_of(device: str, family: str, tp: int, precision: str) -> EngineStep:
    """Iterations of vLLM."""
    cluster = device_of(f"{DEVICES[device]}:{tp}", load_catalog()).cluster
    generation, name = generation_of(family, tp=tp), FORMATS[precision]
    weights = stored(generation, format_of(name) if name else None)
    return EngineStep(generation, cluster, costs=engine_of("vllm").costs, weights=weights)


def forecast(row: pd.Series) -> dict[str, float]:
    """Joules a token and tokens a second of a row."""
    tp, clients = int(row.tp), max(1, round(row.batch_size))
    step, generation = step_of(row.device, row.family, tp, row.precision), generation_of(row.family, tp=tp)
    chip = load_catalog().chip(DEVICES[row.device])
    assert chip.usable_memory_bytes is not None
    name = FORMATS[row.precision]
    weights = stored(generation, format_of(name) if name else None)
    policy = engine_of("vllm").policy(
        generation,
        capacity_bytes=chip.usable_memory_bytes,
        outside_bytes=700_000_000,
        longest=8192,
        weight_bytes=weights.bytes,
        sequences=clients,
    )
    lengths = Lengths(QUESTION_TOKENS[row.task], row.output_tokens_mean)
    load = LoadShape(lengths).at(1.0, count=ROUNDS * clients)
    served = serve(load, step, policy, concurrency=clients)
    rate = len(load) / served.span_s
    energy = energy_use(
        chip,
        served,
        work_of(served, generation, weights),
        precision=computed_in(chip, weights, "bf16"),
        devices=tp,
        rate_per_s=rate,
        iterations=engine_of("vllm").spread,
        parameters=parameters(),
    )
    assert energy is not None
    return {"joules": energy.joules_per_token.value, "tokens_per_s": rate * float(load.output_tokens.mean())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True, help="folder of the reference measurements")
    parser.add_argument("--write", action="store_true", help="put the table into docs/serving-load.md")
    options = parser.parse_args()
    rows = rows_of(options.reference)
    forecasts = pd.DataFrame([forecast(row) for _, row in rows.iterrows()])
    low, high = energy_spread(engine_of("vllm").spread)
    ratio, rates = forecasts.joules / rows.joules_per_token, forecasts.tokens_per_s / rows.output_tokens_per_s
    lines = []
    for figure, part in (("joules a token", ratio), ("tokens a second, on which they rest", rates)):
        error = (part - 1).abs()
        most = error.quantile(0.9)
        lines.append(f"{len(part)} rows, {figure}: median error {error.median():.1%}, 90th percentile {most:.1%}.")
    table = rows[["device", "family", "precision"]].assign(ratio=ratio, inside=(1 / ratio).between(low, high))
    text = "\n".join([*lines, "", table_of(table, ["device", "family", "precision"])])
    publish(text, BEGIN, END, write=options.write)


if __name__ == "__main__":
    main()
