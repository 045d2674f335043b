"""Published steps on several GPUs beside our forecasts, and the page about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.check_published import forecast
from benchmarks.fit.intervals import checks_several
from benchmarks.fit.split import sets_several
from benchmarks.support.accuracy_tables import by, cells, errors, table
from benchmarks.support.published import cases
from benchmarks.support.published_case import Case
from gpuwise.cost.calibration import PROVENANCE
from gpuwise.cost.parameters import parameters
from gpuwise.errors import GpuwiseError
from gpuwise.hardware.catalog import Catalog

COMMAND = "python -m benchmarks.several_report --reference FOLDER --cache FOLDER"
# Groups of the page: how their subsets begin, the goal for the median error, how the devices share the work.
GROUPS = {
    "MPT, FSDP": ("MPT FSDP", 0.07),
    "Llama 3.1, FSDP2 (torchtitan)": ("torchtitan", 0.10),
    "ResNet-50, replicas on 1 to 4 machines (DLPerf)": ("DLPerf", 0.10),
    "ResNet-50, BERT, replicas in one machine (Lambda)": ("lambda", 0.10),
    "EfficientNet, SSD300, NCF, replicas on 1 to 8 machines (NVIDIA)": ("DLE", 0.10),
}


def rows(reference: Path, cache: Path) -> pd.DataFrame:
    """One row a published step of several devices that can be forecast."""
    catalog, result = Catalog(), []
    for case in cases(reference):
        if case.count * case.machines == 1:
            continue
        try:
            result.append(_row(case, cache, catalog))
        except GpuwiseError:
            continue
    return pd.DataFrame(result)


def is_fitted(case: Case) -> bool:
    """Whether benchmarks.fit_several learns from the row."""
    return case.subset == "MPT FSDP" and sets_several(f"{case.job} {case.chip_id} {case.count * case.machines} {case.size}")


def _row(case: Case, cache: Path, catalog: Catalog) -> dict[str, Any]:
    result = forecast(case, cache, catalog, parameters())
    step, peak = result.step_time_s, case.peak_bytes
    levels = {level: result.rests_on.get(words, 0.0) for level, words in PROVENANCE.items()}
    return {
        "group": next(name for name, (begins, _) in GROUPS.items() if case.subset.startswith(begins)),
        "model": case.model,
        "device": case.chip_id,
        "devices": case.count * case.machines,
        "tokens": dict(case.size).get("seq_len", 0),
        "split": "fitted" if is_fitted(case) else "unseen",
        "seconds": case.seconds,
        "log_error": np.log(case.seconds / step.value),
        "inside": step.low <= case.seconds <= step.high,
        "communication": result.bound["communication"],
        "level": max(levels, key=lambda level: levels[level]),
        "memory_error": np.nan if peak is None else result.memory.peak_reserved_bytes / peak - 1,
    }


def page(result: pd.DataFrame) -> str:
    """docs/accuracy-several.md."""
    unseen = result[result.split == "unseen"]
    tested = unseen[checks_several(unseen)]
    sharded = result[result.group == "MPT, FSDP"]
    replicas = unseen[unseen.group != "MPT, FSDP"]
    memory = result.memory_error.dropna()
    lengths = sharded.assign(tokens=pd.cut(sharded.tokens, [0, 1024, 4096, 16384, 65536], labels=_LENGTHS).astype(str))
    return _PAGE.format(
        command=COMMAND,
        rows=f"{len(result):,}",
        goals=table(["rows", "split", "goal", *_HEAD], list(_goal_lines(result)), words=2),
        inside=f"{tested.inside.mean():.0%}",
        tested=f"{len(tested):,}",
        by_model=by(sharded, "model", "split"),
        by_chip=by(sharded.assign(GPUs=_counts(sharded)), "device", "GPUs"),
        by_length=by(lengths, "tokens"),
        by_count=by(replicas.assign(GPUs=_counts(replicas)), "group", "GPUs"),
        by_device=by(replicas, "device"),
        memory=", ".join(f"{error:+.1%}" for error in sorted(memory)),
    )


_HEAD = ["rows", "median error", "mean error", "90th percentile", "bias", "inside the interval"]
_LENGTHS = ["up to 1,024", "up to 4,096", "up to 16,384", "up to 65,536"]


def _counts(part: pd.DataFrame) -> np.ndarray:
    names = np.array(["2 to 4", "8", "16 to 64", "more than 64"])
    return names[np.searchsorted([4, 8, 64], part.devices.to_numpy())]


def _goal_lines(result: pd.DataFrame) -> list[list[str]]:
    lines = []
    for name, (_, goal) in GROUPS.items():
        for split, part in result[result.group == name].groupby("split"):
            lines.append([name, split, f"{goal:.0%}", *cells(part), f"{part.inside.mean():.0%}"])
    return lines


def summary(result: pd.DataFrame) -> str:
    """A line a group, for the terminal."""
    lines = []
    for (group, split), part in result.groupby(["group", "split"]):
        size = errors(part)
        lines.append(f"{group}, {split}: {len(part)} rows, median {np.median(size):.1%}, inside {part.inside.mean():.0%}")
    return "\n".join(lines)


_PAGE = """<!-- Generated. Do not edit: run `{command}`. -->
# How accurate forecasts of several GPUs are

Others measured and published {rows} steps of several GPUs; gpuwise forecast the same from the code of the model, the datasheets
of devices and links, and figures that were fitted to other rows. Most devices and models are known to those fits from one GPU.
[accuracy.md](accuracy.md) says what each column means.

**fitted**: half of the rows of MPT, by a checksum of model, device, number of GPUs and length. `python -m
benchmarks.fit_several` fits three figures to those of eight GPUs: the clock at which an H100 computes products for minutes, and
how much slower or faster two kernels of those runs were than PyTorch's of today (attention, presumably in Triton, and a fused
cross entropy). A user's forecast has the first of the three alone. The clock of an A100 is another source's, and these rows
confirm it to 2 % (`cost/data/efficiency.toml`). **unseen**: all others. Those of MPT share models and devices with the fitted
ones, and were in view while the form of these figures was chosen.

{goals}

Half of the models, by a checksum, set the 90 % interval of steps on several known GPUs. Of the {tested} unseen rows of other
models {inside} lie inside.

Of several devices, the interval that these models gave covered 82% of those rows. After that figure was known, it was widened
by Student's factor for six models, as intervals of few devices are. The share above is therefore no clean test of its width.

## MPT under FSDP

{by_model}

{by_chip}

{by_length}

## Replicas and Llama, unseen rows

{by_count}

{by_device}

Reserved memory of the rows of torchtitan that gpuwise forecasts: {memory} of the published figure.

## What cannot be forecast

- fp8 products of sharded parameters, which are most rows of torchtitan, and compiled steps of split layers.
- Asynchronous tensor parallelism, which runs communication inside of products.
- Lambda's rows of Transformer-XL on several GPUs: their logs say "multi_gpu : None", so each GPU trained a model of its own.
- Rows of other frameworks: JAX on TPUs; OneFlow, MXNet, TensorFlow and PaddlePaddle in DLPerf.
"""
