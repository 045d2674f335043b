"""How long passes of small models take on one core of this machine: as forecast, beside those measured.

    python -m benchmarks.small_passes [--rounds N] [--quick] [--write]

One thread and its processor time, as in benchmarks.cpu_steps: on a shared machine that is far steadier than the clock on the
wall, though caches and memory are shared still. The networks that `gpuwise measure` observes are observed and fitted as it does
(--quick: those of the quick sweep). Between them the models below run, in turn, in rounds; no fit sees any of them. Forecasts
by the shipped figures, by a fit without the passes of small networks, and by the whole fit stand beside the median of the
rounds' own medians. About five minutes of one core; --write replaces benchmarks/results/small_passes.json and the section of
docs/measured-here.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import date
from functools import partial
from statistics import median

import torch
from torch import Tensor, nn

from benchmarks.support.small_passes_page import RESULTS, Row, section
from gpuwise.cost.calibration import Calibration, StepSpread, calibration
from gpuwise.cost.calibration.files import CalibrationFile
from gpuwise.cost.kernels import kernel_times
from gpuwise.cost.parameters import parameters
from gpuwise.hardware import Chip, detect_machine, load_catalog
from gpuwise.hardware.detect import detect_cpu
from gpuwise.job import Job, checked_batch, resolve
from gpuwise.job.models.bert import Bert, BertConfig
from gpuwise.job.models.language import masked_word_batch, token_loss
from gpuwise.job.models.mlp import class_loss, image_batch
from gpuwise.measure.calibrate import calibrate
from gpuwise.measure.networks import NETWORKS, QUICK
from gpuwise.measure.observe import observe
from gpuwise.measure.samples import StepSamples, samples_of
from gpuwise.measure.small_networks import SMALL
from gpuwise.measure.stages import Stage, stages
from gpuwise.measure.writing_networks import WRITING
from gpuwise.runtime.build.host_memory import keep_freed_memory
from gpuwise.runtime.build.program import build
from gpuwise.strategy import Strategy
from gpuwise.tracing.record import record_many

OBSERVED = {"network": NETWORKS, "writing": WRITING, "small": SMALL}
CPU = torch.device("cpu")
clock = time.thread_time
WARM_UP, FEWEST, ROUND_S = 2, 3, 0.1  # passes before those that count, passes and seconds of a round
SIDE, COPIED = 1024, 2**24  # of a product that has the peak; numbers of a copy that has the bandwidth
SHIPPED, WITHOUT, WHOLE = "shipped figures", "measured without small networks", "measured"


class Fire(nn.Module):
    """SqueezeNet's block (Iandola et al.): a pointwise convolution, then a pointwise and a 3×3 one side by side."""

    def __init__(self, inside: int, narrow: int, outside: int):
        super().__init__()
        self.squeeze, self.act = nn.Conv2d(inside, narrow, 1), nn.ReLU(inplace=True)
        self.point, self.spatial = nn.Conv2d(narrow, outside, 1), nn.Conv2d(narrow, outside, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.squeeze(x))
        return torch.cat([self.act(self.point(x)), self.act(self.spatial(x))], 1)


def squeezenet() -> nn.Module:
    """SqueezeNet 1.1."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, stride=2), nn.ReLU(inplace=True)]
    channels = 64
    for narrow, outside, pooled in ((16, 64, True), (16, 64, False), (32, 128, True), (32, 128, False), (48, 192, True)):
        layers += [nn.MaxPool2d(3, 2, ceil_mode=True)] if pooled else []
        layers.append(Fire(channels, narrow, outside))
        channels = 2 * outside
    layers += [Fire(384, 48, 192), Fire(384, 64, 256), Fire(512, 64, 256), nn.Dropout(0.5), nn.Conv2d(512, 1000, 1)]
    return nn.Sequential(*layers, nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def bert_tiny() -> Job:
    """BERT-Tiny (Turc et al.): 2 layers of width 128."""
    batch = partial(masked_word_batch, vocabulary=30_522, seq_len=64)
    return Job(partial(Bert, BertConfig(30_522, 512, 2, 128, 2, 2, 512)), batch, token_loss)


OWN: dict[str, Callable[[], Job]] = {
    "squeezenet": lambda: Job(squeezenet, partial(image_batch, image_size=224), class_loss),
    "bert-tiny": bert_tiny,
}
# Model and samples of a pass.
MODELS = (
    ("tabular-mlp", 1),
    ("tabular-mlp", 8),
    ("tabular-mlp", 512),
    ("timm:mobilenetv3_small_100", 1),
    ("timm:mobilenetv3_small_100", 4),
    ("timm:mobilenetv2_100", 1),
    ("timm:efficientnet_b0", 1),
    ("squeezenet", 1),
    ("bert-tiny", 1),
    ("timm:vit_tiny_patch16_224", 1),
    ("timm:convnext_atto", 1),
    ("timm:regnety_004", 1),
    ("timm:resnet18", 1),
    ("timm:densenet121", 1),
)


def strategy_of(samples: int) -> Strategy:
    return Strategy(precision="fp32", micro_batch=samples, mode="infer")


def job_of(name: str) -> Job:
    return OWN[name]() if name in OWN else resolve(name)


def seconds_of(run: Callable[[], object]) -> float:
    start = clock()
    run()
    return clock() - start


def round_s(run: Callable[[], object]) -> float:
    """The median pass of a round."""
    for _ in range(WARM_UP):
        run()
    seconds: list[float] = []
    while len(seconds) < FEWEST or sum(seconds) < ROUND_S:
        seconds.append(seconds_of(run))
    return median(seconds)


def one_core() -> Chip:
    """This machine's chip with one core: the rate of a square product and the bandwidth of a long copy on it."""
    chip = detect_machine(load_catalog(), measured=False).chip
    a, b = torch.randn(2, SIDE, SIDE)
    source, target = torch.randn(COPIED), torch.empty(COPIED)
    peak = 2 * SIDE**3 / round_s(lambda: torch.mm(a, b))
    bandwidth = 2 * 4 * COPIED / round_s(lambda: target.copy_(source))
    peaks = {**chip.peak_flops_per_s, "fp32": peak}
    return replace(chip, sm_count=1, peak_flops_per_s=peaks, memory_bandwidth_bytes_per_s=bandwidth, calibration="")


def observed(stage: Stage) -> StepSamples:
    """What `gpuwise measure` has of a stage, by the clock of processor time."""
    name, job, samples = OBSERVED[stage.name][stage.network]
    strategy = Strategy(precision=stage.precision, micro_batch=samples, mode=stage.mode)
    return samples_of(name, observe(job, strategy, CPU, steps=stage.steps, clock=clock))


def measured(*, quick: bool, rounds: int) -> tuple[list[tuple[str, StepSamples]], list[list[float]]]:
    """The samples of the networks, with the name of their stage, and the rounds of each model, spread between them."""
    planned = stages(
        quick=quick, networks=len(NETWORKS), quick_networks=QUICK, half=None, writing=len(WRITING), small=len(SMALL)
    )
    todo = [stage for stage in planned if stage.name in OBSERVED]
    runs = []
    for name, samples in MODELS:
        job = job_of(name)
        program, batch = build(job, strategy_of(samples), CPU), checked_batch(job, samples)
        runs.append(partial(program.infer, batch))
    begins = {len(todo) * (number + 1) // (rounds + 1) for number in range(rounds)}
    observations: list[tuple[str, StepSamples]] = []
    times: list[list[float]] = [[] for _ in MODELS]
    for number, stage in enumerate(todo):
        observations.append((stage.name, observed(stage)))
        print(f"{number + 1}/{len(todo)} {observations[-1][1].name}", file=sys.stderr, flush=True)
        for model, run in enumerate(runs) if number in begins else ():
            times[model].append(round_s(run))
    return observations, times


def by_fits(
    chip: Chip, observations: Sequence[tuple[str, StepSamples]]
) -> tuple[dict[str, Calibration], tuple[StepSpread, ...]]:
    """Calibrations by the names of their figures, and the spreads of the whole fit."""
    known = calibration(chip)
    fits = {WITHOUT: [s for stage, s in observations if stage != "small"], WHOLE: [s for _, s in observations]}
    figures = {SHIPPED: known}
    spreads: tuple[StepSpread, ...] = ()
    for name, samples in fits.items():
        fit = calibrate(samples, chip)
        figures[name] = Calibration((CalibrationFile("here", "machine", chip.id, dict(fit.entries), {}), *known.files))
        spreads = fit.spreads
    return figures, spreads


def rows(chip: Chip, figures: dict[str, Calibration], spreads: Sequence[StepSpread], times: list[list[float]]) -> Iterator[Row]:
    spread = next(spread for spread in spreads if spread.mode == "infer")
    for (name, samples), of_rounds in zip(MODELS, times, strict=True):
        (trace,) = record_many(job_of(name), strategy_of(samples), [samples], target="cpu", once=[samples])
        forecasts = {
            key: float(trace.counts() @ kernel_times(trace, chip, parameters(), each).device_s) for key, each in figures.items()
        }
        middle = median(of_rounds)
        inside = spread.low <= middle / forecasts[WHOLE] <= spread.high
        yield Row(name, samples, middle, min(of_rounds), max(of_rounds), forecasts, inside)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="the networks of the quick sweep")
    parser.add_argument("--write", action="store_true", help="replace results and the section of the page")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    keep_freed_memory()
    chip = one_core()
    observations, times = measured(quick=options.quick, rounds=options.rounds)
    table = list(rows(chip, *by_fits(chip, observations), times))
    results: dict[str, object] = {
        "machine": detect_cpu().name,
        "torch": torch.__version__,
        "date": date.today().isoformat(),
        "rounds": options.rounds,
        "rows": [asdict(row) for row in table],
    }
    print(section(results))
    if options.write:
        from benchmarks.measured_here import write_page

        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        write_page()


if __name__ == "__main__":
    main()
