"""examples/digits.py under accelerate, which `accelerate launch --config_file FILE` starts: FOLDER FILE."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from examples.digits import loss as loss_of
from tests.validators.training import STRATEGY, recorded, still_net


def main(folder: str, file: str) -> None:
    weights, batches = recorded(Path(folder))
    # As the head of the exported file asks for.
    assert f"Accelerator(gradient_accumulation_steps={STRATEGY.accumulation})" in Path(file).read_text()
    accelerator = Accelerator(gradient_accumulation_steps=STRATEGY.accumulation)
    assert accelerator.device.type == "cpu"
    model = still_net()
    model.load_state_dict(weights)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True))
    losses = []
    for batch in batches:
        with accelerator.accumulate(model):
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    print("losses", *losses)


if __name__ == "__main__":
    main(*sys.argv[1:])
