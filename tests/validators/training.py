"""accelerate and Lightning train examples/digits.py with an exported file: the losses of two steps beside those of gpuwise.

The trainers start from one set of weights and read the same batches, which a run of gpuwise records. The model has no dropout,
whose random numbers each trainer would draw in an order of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwise.export.cells import IN_SCRIPT
from gpuwise.export.target import DeviceSet, Heading
from gpuwise.export.targets import target_of
from gpuwise.export.values import values_of_strategy
from gpuwise.export.writing import keys_of_plan
from gpuwise.strategy import Strategy

if TYPE_CHECKING:
    import torch

TRAINERS = ("accelerate", "lightning")
STRATEGY = Strategy(micro_batch=32, accumulation=2, optimizer="adamw")
STEPS, TOLERANCE = 2, 1e-6
ROOT = Path(__file__).parents[2]


def losses_agree(name: str) -> list[str]:
    """The failures, in words."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        ours = record(path)
        target, world = target_of(name), DeviceSet(1, 1, True)
        keys, lines, _ = keys_of_plan(target, {**values_of_strategy(STRATEGY), "steps": STEPS}, world)
        script = tuple(line.written for line in lines if line.status == IN_SCRIPT)
        file = path / f"exported.{target.suffix}"
        file.write_text(target.write(keys, Heading("digits", "0" * 64, "0", target.peer, "run", script)))
        theirs = train(name, path, file)
    difference = max((abs(a - b) for a, b in zip(ours, theirs, strict=True)), default=float("inf"))
    print(f"{target.peer}: digits, {STEPS} steps of 2 micro-batches: losses {theirs}, largest difference {difference:.1e}")
    return [] if difference <= TOLERANCE and len(ours) == 2 * STEPS else [f"{name}: losses {theirs}, gpuwise has {ours}"]


def record(folder: Path) -> list[float]:
    """The losses of gpuwise's micro-batches; its first weights and its batches go to folder (see `recorded`)."""
    import torch
    from examples.digits import job as digits
    from safetensors.torch import save_file
    from torch._subclasses import FakeTensor

    import gpuwise

    def copied(value: torch.Tensor) -> torch.Tensor:
        return torch.tensor(value.detach().tolist(), dtype=value.dtype)

    losses: list[float] = []
    batches: list[dict[str, torch.Tensor]] = []
    weights: dict[str, torch.Tensor] = {}

    def watched(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if isinstance(next(model.parameters()), FakeTensor):  # gpuwise forecasts the step before it trains
            return digits.loss(model, batch)
        if not weights:
            weights.update({key: copied(value) for key, value in model.state_dict().items()})
        loss = digits.loss(model, batch)
        batches.append({key: copied(value) for key, value in batch.items()})
        losses.append(loss.item())
        return loss

    job = replace(digits, model=still_net, loss=watched, schedule="constant", ema_decay=None, evaluate=None)
    settings = {
        "micro_batch": 32,
        "accumulate": 2,
        "precision": "fp32",
        "optimizer": "adamw",
        "compile": False,
        "channels_last": False,
    }
    gpuwise.train(job, steps=STEPS, run=folder / "run", **settings)
    losses, batches = losses[-2 * STEPS :], batches[-2 * STEPS :]
    save_file(weights, folder / "weights.safetensors")
    for number, batch in enumerate(batches):
        save_file(batch, folder / f"batch-{number}.safetensors")
    return losses


def recorded(folder: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, torch.Tensor]]]:
    """The weights and the batches that `record` left in a folder."""
    from safetensors.torch import load_file

    batches = [load_file(folder / f"batch-{number}.safetensors") for number in range(2 * STEPS)]
    return load_file(folder / "weights.safetensors"), batches


def still_net():  # type: ignore[no-untyped-def]
    """The network of the example, without dropout."""
    from examples.digits import DigitNet

    class StillNet(DigitNet):
        def train(self, mode: bool = True):  # type: ignore[no-untyped-def]
            return super().train(False)

    return StillNet().eval()


def train(name: str, folder: Path, file: Path) -> list[float]:
    """The losses of a peer's micro-batches, from a process of its own that the exported file starts."""
    script = [str(Path(__file__).parent / f"{name}_digits.py"), str(folder), str(file)]
    launch = ["-m", "accelerate.commands.launch", "--config_file", str(file)] if name == "accelerate" else []
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, *launch, *script], capture_output=True, text=True, check=False, env=environment, timeout=300
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("losses ")]
    if done.returncode or not lines:
        raise RuntimeError(f"{name} ended with {done.returncode}: {done.stderr[-2000:]}")
    return [float(word) for word in lines[0].split()[1:]]
