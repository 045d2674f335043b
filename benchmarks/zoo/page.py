"""docs/accuracy-zoo.md: errors of the zoo's forecasts, and the rows that have none."""

from __future__ import annotations

import numpy as np
import pandas as pd

from benchmarks.support.accuracy_tables import cells, errors, table

COMMAND = "python -m benchmarks.zoo_report --reference FOLDER --cache FOLDER --write"
HEAD = ("rows", "median error", "mean error", "90th percentile", "bias", "inside the interval")


def summary(result: pd.DataFrame, refused: pd.DataFrame) -> str:
    """A line a model, mode and number of GPUs, for the terminal; then what was refused."""
    lines = []
    for (model, mode, several), part in _grouped(result, "model", "mode", "several"):
        size, bias = errors(part), np.expm1(np.median(-part.log_error))
        figures = f"median {np.median(size):.1%}, 90th percentile {np.quantile(size, 0.9):.1%}, bias {bias:+.1%}"
        lines.append(f"{model}, {mode}, {several}: {len(part)} rows, {figures}, inside {part.inside.mean():.0%}")
    lines += [f"refused {len(part)}: {model}: {reason}" for (model, reason), part in refused.groupby(["model", "reason"])]
    return "\n".join(lines)


def page(result: pd.DataFrame, refused: pd.DataFrame, unscored: pd.DataFrame) -> str:
    """The page as Markdown."""
    alone = result[result.devices == 1]
    return _PAGE.format(
        command=COMMAND,
        rows=f"{len(result):,}",
        models=f"{result.model.nunique()}",
        devices=f"{result.device.nunique()}",
        by_model=_errors(result, "model", "mode", "several"),
        by_device=_errors(alone, "model", "device", "precision", "mode"),
        unscored=_reasons(pd.concat([unscored, refused])),
    )


def _grouped(result: pd.DataFrame, *columns: str):  # type: ignore[no-untyped-def]
    if not len(result):
        return []
    return result.assign(several=np.where(result.devices > 1, "several GPUs", "one GPU")).groupby(list(columns))


def _errors(result: pd.DataFrame, *columns: str) -> str:
    lines = [[*key, *cells(part), f"{part.inside.mean():.0%}"] for key, part in _grouped(result, *columns)]
    return table([*(_NAMES.get(name, name) for name in columns), *HEAD], lines, words=len(columns))


def _reasons(unscored: pd.DataFrame) -> str:
    """One line a reason, with its models."""
    lines = []
    for reason, part in sorted(unscored.groupby("reason"), key=lambda pair: -len(pair[1])):
        counts = part.groupby("model").size().sort_values(ascending=False)
        named = [f"{model} ({count})" for model, count in counts.head(_MODELS_NAMED).items()]
        rest = len(counts) - len(named)
        lines.append([str(reason), ", ".join(named) + (f" and {rest} more" if rest else ""), f"{len(part):,}"])
    return table(["reason", "models", "rows"], lines, words=2)


_MODELS_NAMED = 12
_NAMES = {"several": "GPUs"}

_PAGE = """<!-- Generated. Do not edit: run `{command}`. -->
# How accurate forecasts of other models are

Others measured and published {rows} steps of {models} models on {devices} devices, which `benchmarks/zoo/` builds in plain
PyTorch or from libraries. No fit learns from these rows: all of them are a test, by the path that a user's model takes.
[accuracy.md](accuracy.md) says what each column means. "inside the interval" is the share of rows inside the forecast's 90 %
interval.

{by_model}

## One GPU, by device

{by_device}

## What the larger errors are made of

- **GNMT**: forecasts are mostly too fast. One length of sentences stands for five buckets, of which short ones reach fewer word
  pieces a second, and the example reads its loss at every step, so that the device waits for the host; neither is in the
  forecast. On several GPUs it is further off than on one: apex's DDP exchanged gradients then.
- **NCF, inference**: up to 16,384 samples a step waits for launches. The forecast has the host of a DGX in eager training; what
  is published is the best of 20 runs, a third faster. Larger steps gather rows of 256 bytes, in fp16 of 128, which take nearly
  as long as those of 256: the forecast counts bytes and is too fast there.
- **SSD300, inference**: a published step waits for the data loader and copies its images (benchmark_inference_loop of the
  example). The forecast has the network alone: it is far too fast on A100, where loading takes longer than the network, and
  near on V100 in fp32.
- **DLRM**: the example's own kernels fuse the gathers of 26 tables, and the products of pairs with the choice of their lower
  half. The forecast is of PyTorch's operators, which take longer.
- **Temporal fusion transformer**: most of its time are kernels over few numbers, bound by memory.

## Rows without a forecast

Only programs in PyTorch are scored, whose sizes are known.

{unscored}
"""
