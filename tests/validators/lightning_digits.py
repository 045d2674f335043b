"""examples/digits.py under Lightning, by the Trainer of an exported file: FOLDER FILE."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import lightning.pytorch as pl
import torch
from examples.digits import loss as loss_of
from tests.validators.training import recorded, still_net


class Digits(pl.LightningModule):
    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.net = still_net()
        self.net.load_state_dict(weights)
        self.losses: list[float] = []

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        loss = loss_of(self.net, batch)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=2e-3, fused=True)


def main(folder: str, file: str) -> None:
    weights, batches = recorded(Path(folder))
    module = Digits(weights)
    trainer = runpy.run_path(file)["trainer"](logger=False)
    trainer.fit(module, torch.utils.data.DataLoader(batches, batch_size=None))
    print("losses", *module.losses)


if __name__ == "__main__":
    main(*sys.argv[1:])
