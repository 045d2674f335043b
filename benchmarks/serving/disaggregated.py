"""Forecasts of published runs whose prompts are read on other instances than answers are written on (engines_online.csv).

    python -m benchmarks.serving.disaggregated --reference FOLDER [--write]

Nothing is fitted on these rows. Instances and their link are those of `gpuwise serve-plan --prefill-on`; clients send ten
requests each, as in benchmarks.serving.online. A row without the numbers of instances is a refusal. Where the table has no
concurrency, it is the decoding instances times their batch, as in all rows that have both; their batch of prompts, 1
in each, is not taken for a limit. --write puts the tables into
docs/serving-accuracy.md. Ten minutes of one core, most of it the recording of the models.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from benchmarks.serving.instances import DEVICES, generation_on, instance_of, parts_of
from benchmarks.serving.online import ENGINES, FIGURES, FORMATS, OnlineRun
from benchmarks.serving.online_settings import OnlineSettings, settings_of_run
from benchmarks.serving.page import error_row, publish, table_of
from benchmarks.serving.request_rates import refusals
from gpuwise.api.devices import device_of
from gpuwise.api.serving_apart import INSIDE, sent_by
from gpuwise.errors import GpuwiseError
from gpuwise.hardware import load_catalog
from gpuwise.serving.apart import ApartInstances, Transfer
from gpuwise.serving.apart_loop import served_to_clients
from gpuwise.serving.engines import engine_of
from gpuwise.serving.instance import Instance
from gpuwise.serving.sharing import Degrees

BEGIN, END = "<!-- disaggregated: python -m benchmarks.serving.disaggregated -->", "<!-- end of disaggregated -->"
# What joins instances: a rack of GB200 is one NVLink domain; of the others the table says nothing, and their machines have an
# adapter of that rate for each device (DGX H100 and B200).
NETWORKS = {"GB200": INSIDE, "H100 SXM": "400 Gbit InfiniBand", "B200 SXM": "400 Gbit InfiniBand"}


@dataclass(frozen=True)
class ApartRun:
    """One published run.

    Attributes:
        run: what it has in common with those of one kind of instance; its degrees are those of the instances that write.
        reading: degrees of those that read.
        readers, writers: how many there are; 0 where the table does not say.
        clients: that send requests.
    """

    run: OnlineRun
    reading: Degrees
    readers: int
    writers: int
    clients: int

    def instances(self) -> ApartInstances:
        """The instances; InputError where a model does not fit."""
        run = self.run
        reads = self._instance(self.reading, sequences=None, tokens=run.settings.tokens(run.read))
        writes = self._instance(run.degrees, sequences=max(engine_of(run.engine).sequences, run.concurrency), tokens=None)
        writes = replace(writes, policy=replace(writes.policy, brought=True))
        transfers = (self._transfer(degrees) for degrees in (self.reading, run.degrees))
        transfer = max(transfers, key=lambda each: each.seconds(np.array([1]))[0])
        return ApartInstances(reads, writes, transfer, self.readers, self.writers)

    def _instance(self, degrees: Degrees, *, sequences: int | None, tokens: int | None) -> Instance:
        run, longest = self.run, self.run.read + self.run.written
        names = run.engine, run.device, run.family, degrees, run.format
        cache = run.settings.cache
        parts = parts_of(*names, cache=cache, longest=longest, sequences=sequences, batched_tokens=tokens)
        return instance_of(run.engine, parts)

    def _transfer(self, degrees: Degrees) -> Transfer:
        catalog, run = load_catalog(), self.run
        device = device_of(f"{DEVICES[run.device]}:{degrees.devices}", catalog)
        generation = generation_on(run.family, degrees, run.settings.cache)
        return sent_by(device, generation, network=NETWORKS[run.device], catalog=catalog)

    def forecast(self) -> dict[str, float]:
        """Mean seconds by the names of FIGURES."""
        load = replace(self.run, concurrency=self.clients).load()
        served = served_to_clients(self.instances(), load, self.clients)
        ttft_s, tpot_s = float(np.nanmean(served.ttft_s)), float(np.nanmean(served.tpot_s))
        return {"ttft_s": ttft_s, "tpot_s": tpot_s, "end_s": ttft_s + (self.run.written - 1) * tpot_s}


def apart_runs(reference: Path) -> Iterator[ApartRun]:
    """The disaggregated runs."""
    table = pd.read_csv(reference / "serving" / "engines_online.csv")
    for row in table[table["mode"] == "disagg"].itertuples():
        stated = row.prefill_num_workers == row.prefill_num_workers
        readers, writers, batch = (
            int(value) if stated else 0 for value in (row.prefill_num_workers, row.decode_num_workers, row.decode_batch)
        )
        engine = ENGINES[row.engine]
        name = row.moe_precision if row.moe_precision == "fp8_block" else row.gemm_precision
        settings = settings_of_run(
            engine=engine, family=row.family, format=FORMATS.get(name, ""), device=row.device, measured=row.measured
        )
        run = OnlineRun(
            row=row.Index,
            engine=engine,
            device=row.device,
            family=row.family,
            degrees=_degrees(row, "decode"),
            format=FORMATS.get(name, ""),
            settings=replace(settings, waited=0) if stated else OnlineSettings(),
            concurrency=max(batch, 1),
            read=int(row.input_tokens),
            written=int(row.output_tokens),
            ttft_s=row.ttft_ms / 1e3,
            tpot_s=row.tpot_ms / 1e3,
            varied=True,
        )
        clients = int(row.concurrency) if row.concurrency == row.concurrency else writers * batch
        yield ApartRun(run, _degrees(row, "prefill"), readers, writers, clients)


def _degrees(row: NamedTuple, kind: str) -> Degrees:
    tp, dp, expert_tp, ep = (max(1, int(getattr(row, f"{kind}_{name}"))) for name in ("tp", "attention_dp", "moe_tp", "moe_ep"))
    return Degrees(tp, expert_tp, ep, dp)


def scored(runs: list[ApartRun]) -> tuple[pd.DataFrame, list[str]]:
    """Errors of the runs with a forecast, and why the others have none."""
    rows, reasons = [], []
    for each in runs:
        run, engine = each.run, engine_of(each.run.engine)
        if not each.readers:
            reasons.append("the table does not say how many instances there were")
            continue
        try:
            forecast = each.forecast()
        except GpuwiseError as error:
            reasons.append(str(error))
            continue
        columns = {"engine": run.engine, "device": run.device, "family": run.family}
        for name in FIGURES:
            spread = engine.first_token_spread if name == "ttft_s" else engine.spread
            rows.append(error_row(name, forecast[name] / getattr(run, name), spread, fitted=False, **columns))
    return pd.DataFrame(rows), reasons


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    runs = list(apart_runs(options.reference))
    rows, reasons = scored(runs)
    parts = [
        f"{len(runs):,} runs, {len(reasons):,} of them without a forecast.",
        table_of(rows, ["figure"]),
        table_of(rows, ["engine", "device", "family", "figure"]),
        refusals(reasons),
    ]
    publish("\n\n".join(parts), BEGIN, END, write=options.write)


if __name__ == "__main__":
    main()
