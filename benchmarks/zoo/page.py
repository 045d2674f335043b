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
    loads, result = result[result.loads], result[~result.loads]
    alone = result[result.devices == 1]
    return _PAGE.format(
        command=COMMAND,
        rows=f"{len(result):,}",
        models=f"{result.model.nunique()}",
        devices=f"{result.device.nunique()}",
        by_model=_errors(result, "model", "mode", "several"),
        loading=f"{len(loads):,}",
        by_loader=_errors(loads, "model", "device", "precision", "mode"),
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

## Rows that time a data loader

{loading} more rows wait for a loader whose rate is not published. SSD300's timed step takes its batch from the loader and
copies it from pageable memory (benchmark_inference_loop of the example): the copy is in the forecast, loading is not. nnU-Net's
loader reads whole volumes, copies them to the GPU and crops them there, so that 32 images of a volume take as long as 64 on an
A100 in mixed precision.

{by_loader}

## One GPU, by device

{by_device}

## What the larger errors are made of

- **GNMT**: a row's steps are of four lengths, whose rates the program averages, and each begins with a sum over the batch that
  Python makes sentence by sentence while the device waits; both are in the forecast. What is left on one GPU are recurrent
  layers on Turing and Volta, in fp16 too fast and in fp32 too slow, and four devices (RTX A4000 and A5000 in tf32, B200) that
  are far below their kin. On several GPUs it is the exchange: eight H100 in one machine are hardly slower than one, eight
  RTX 3090 take several times as long. How a machine's GPUs are joined is not in the table; the forecast takes the chip's usual
  link.
- **3D convolutions with channels outermost**: nnU-Net in tf32 and fp32. cuDNN has other kernels for volumes than for images,
  no table of which was available; they are priced as those of images, without Winograd's algorithm. With channels innermost, as
  mixed precision runs, they are nearer.
- **1D convolutions** (HiFi-GAN, Jasper) are images of one row to cuDNN. On A100 they take about twice as long as images of as
  many numbers; in fp32 on V100 Jasper's long filters run above the chip's peak, by Fourier transforms, which are not priced.
- **Optimizers of several passes**: steps of GNMT have the bytes that its program's updates moved
  (`benchmarks/support/published_updates.py`). The others are forecast with a fused update, which is faster than most of theirs.
- **HiFi-GAN and MoFlow, inference** run in TorchScript. MoFlow in mixed precision has products of one row in a batch of 20,480,
  because PyTorch does not fold them where weights are cast; these are priced many times too high.
- **NCF and the temporal fusion transformer, inference**: small batches wait for launches of products and elementwise kernels,
  which the host calls faster than convolutions and their norms, to which its figures were fitted; NCF publishes the best of 20
  runs. Larger steps of NCF gather rows of 256 bytes, in fp16 of 128, which take nearly as long as those of 256: the forecast
  counts bytes and is too fast there.
- **EfficientDet on several GPUs** has batch norms over all of them, whose exchange is not in the forecast.
- **R-CNN**: how many detections pass the threshold is unknown; as many as an image has objects are taken.
- **VGG and ResNet-152** were timed in 2018 (cuDNN 7.0 to 7.4); today's kernels in fp16 are faster.
- **wav2vec 2.0**: how long the sequences of a batch are is taken from the means of its data.
- **DLRM**: the example's own kernels fuse the gathers of 26 tables, and the products of pairs with the choice of their lower
  half. The forecast is of PyTorch's operators, which take longer.

## Rows without a forecast

Only programs in PyTorch are scored, whose sizes are known.

{unscored}
"""
