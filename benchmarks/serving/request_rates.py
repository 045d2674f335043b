"""Forecasts of published runs at a rate of requests, or with all requests at once.

    python -m benchmarks.serving.request_rates --reference FOLDER [--write]

Nothing is fitted on these rows. Runs whose prompts have 215 tokens in the mean read and write ShareGPT, whose lengths are taken
to vary by as much as their mean, up to 2,048 tokens (the filter of vLLM's benchmark); the others have one length. What a row
leaves open makes it a refusal, and refusals are counted by their reason. --write puts the tables into docs/serving-accuracy.md.
Ten minutes of one core, most of it the recording of the models.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from benchmarks.serving.instances import DEVICES, instance_of, parts_of, with_chunks
from benchmarks.serving.models import CONFIGS
from benchmarks.serving.page import error_row, publish, table_of
from gpuwise.errors import GpuwiseError
from gpuwise.serving.arrivals import poisson
from gpuwise.serving.engines import engine_of
from gpuwise.serving.instance import Instance
from gpuwise.serving.lengths import Lengths
from gpuwise.serving.requests import Requests, requests
from gpuwise.serving.served import Served
from gpuwise.serving.sharing import Degrees

BEGIN, END = "<!-- request rates: python -m benchmarks.serving.request_rates -->", "<!-- end of request rates -->"
FORMATS = {"fp8": "fp8", "awq": "int4"}
PUBLISHED = {"gpt-oss-20b": "mxfp4"}  # formats of checkpoints "as published"; others are in bf16
SHAREGPT_TOKENS = (210, 220)  # mean prompts of runs over that data set
SHAREGPT_VARIATION, SHAREGPT_LONGEST = 1.0, 2048
FIGURES = {"ttft_s": "mean_ttft_ms", "tpot_s": "mean_tpot_ms", "tokens/s": "output_tokens_per_s"}


@dataclass(frozen=True)
class RateRun:
    """One published run.

    Attributes:
        row: its row in the table.
        engine, device, family: names, of gpuwise.serving.engines and of the tables.
        reason: why there is no forecast; "" where there is one.
        instance: that serves it; None without a forecast.
        load: its requests; None without a forecast.
        measured: by the names of FIGURES; seconds, and tokens a second.
    """

    row: int
    engine: str
    device: str
    family: str
    reason: str
    instance: Instance | None
    load: Requests | None
    measured: dict[str, float]

    def forecast(self) -> dict[str, float]:
        """Means of the run by the names of FIGURES."""
        assert self.instance is not None
        assert self.load is not None
        return figures_of(self.instance.served(self.load))


def figures_of(served: Served) -> dict[str, float]:
    """Means of an outcome by the names of FIGURES."""
    tokens = float(served.requests.output_tokens[~np.isnan(served.end_s)].sum())
    return {
        "ttft_s": float(np.nanmean(served.ttft_s)),
        "tpot_s": float(np.nanmean(served.tpot_s)),
        "tokens/s": tokens / served.span_s,
    }


def rate_runs(reference: Path) -> Iterator[RateRun]:
    """All runs of request_rates.csv."""
    table = pd.read_csv(reference / "serving" / "request_rates.csv")
    same = [
        "engine",
        "family",
        "input_tokens_mean",
        "output_tokens_per_s",
        "mean_ttft_ms",
        "mean_tpot_ms",
        "request_rate_per_s",
    ]
    cards = table.groupby(same, dropna=False).device.transform("nunique")
    for row in table.itertuples():
        settings = settings_of(row.settings if row.settings == row.settings else "")
        engine = _engine(row, settings)
        reason, instance, load = _refusal(row, settings, cards=int(cards[row.Index])), None, None
        if not reason:
            load = _load(row)
            try:
                instance = _instance(row, settings, engine, load)
            except GpuwiseError as error:
                reason = "weights, or one request, do not fit" if "are more than" in str(error) else str(error)
        measured = {name: getattr(row, column) / (1 if name == "tokens/s" else 1e3) for name, column in FIGURES.items()}
        yield RateRun(row.Index, engine, row.device, row.family, reason, instance, load, measured)


def settings_of(text: str) -> dict[str, str]:
    """Settings by name, of both forms: `max_num_seqs=512;...` and `--ep-size 4 --tp-size 4`."""
    if "=" in text:
        return dict(part.strip().split("=", 1) for part in text.split(";") if "=" in part)
    words = text.split()
    return {
        word.lstrip("-"): words[i + 1] if i + 1 < len(words) and not words[i + 1].startswith("-") else ""
        for i, word in enumerate(words)
        if word.startswith("-")
    }


def _refusal(row: NamedTuple, settings: dict[str, str], *, cards: int) -> str:
    """Why a row has no forecast; "" where it may have one. cards: under how many devices its figures stand."""
    if row.engine == "openvino-model-server":
        return "prompts' lengths are not stated, and OpenVINO has no figures for generated text"
    if cards > 1:
        return "the same figures stand under two devices"
    if int(settings.get("scheduler_steps", 1)) > 1:
        return "several steps between two looks at the queue (scheduler_steps)"
    if "pp-size" in settings:
        return "stages of a pipeline on devices whose number is not stated"
    return "" if row.family in CONFIGS and row.device in DEVICES else "no such model or device here"


def _engine(row: NamedTuple, settings: dict[str, str]) -> str:
    if row.engine == "vllm":
        return "vllm-2024" if str(row.engine_version).startswith("0.6") else "vllm"
    return {"trtllm": "tensorrt-llm"}.get(row.engine, row.engine)


def _instance(row: NamedTuple, settings: dict[str, str], engine: str, load: Requests) -> Instance:
    shared, groups = int(row.devices), int(settings.get("ep-size", 1))
    tokens = settings.get("max-num-batched-tokens", settings.get("max_num_batched_tokens", "default"))
    parts = parts_of(
        engine,
        row.device,
        row.family,
        Degrees(shared, shared // groups, groups),
        FORMATS.get(row.precision, PUBLISHED.get(row.family, "")),
        longest=int((load.input_tokens + load.output_tokens).max()),
        sequences=int(settings["max_num_seqs"]) if "max_num_seqs" in settings else None,
        batched_tokens=int(tokens) if tokens.isdigit() else None,
    )
    chunked = settings.get("chunked_prefill", str(engine_of(engine).chunked)).lower()
    return with_chunks(instance_of(engine, parts), chunked=chunked == "true")


def _load(row: NamedTuple) -> Requests:
    count, means = int(row.requests), (row.input_tokens_mean, row.output_tokens_mean)
    rng = np.random.default_rng(0)
    rate = float(row.request_rate_per_s)
    arrival_s = poisson(rate, count=count, rng=rng) if np.isfinite(rate) else np.zeros(count)
    if SHAREGPT_TOKENS[0] < means[0] < SHAREGPT_TOKENS[1]:
        spread = Lengths(*means, SHAREGPT_VARIATION, SHAREGPT_VARIATION, longest=SHAREGPT_LONGEST)
        return requests(arrival_s, *spread.drawn(count, rng))
    return requests(arrival_s, *(np.full(count, max(1, round(mean))) for mean in means))


def rows_of(runs: list[RateRun]) -> pd.DataFrame:
    """Errors of the runs with a forecast, in the columns of table_of."""
    rows = []
    for run in runs:
        forecast, engine = run.forecast(), engine_of(run.engine)
        columns = {"engine": run.engine, "device": run.device, "family": run.family}
        for name, measured in run.measured.items():
            spread = engine.first_token_spread if name == "ttft_s" else engine.spread
            if measured == measured:
                rows.append(error_row(name, forecast[name] / measured, spread, fitted=False, **columns))
    return pd.DataFrame(rows)


def refusals(reasons: list[str]) -> str:
    """A table of reasons and how many rows have each."""
    lines = ["| rows without a forecast | because |", "| ---: | --- |"]
    return "\n".join([*lines, *(f"| {count:,} | {reason} |" for reason, count in Counter(reasons).most_common())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    runs = list(rate_runs(options.reference))
    answered = [run for run in runs if not run.reason]
    rows = rows_of(answered)
    parts = [
        f"{len(runs):,} runs, {len(runs) - len(answered):,} of them without a forecast.",
        table_of(rows, ["figure"]),
        table_of(rows, ["engine", "device", "family", "figure"]),
        refusals([run.reason for run in runs if run.reason]),
    ]
    publish("\n\n".join(parts), BEGIN, END, write=options.write)


if __name__ == "__main__":
    main()
