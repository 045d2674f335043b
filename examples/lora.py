"""Fine-tuning with LoRA: a character-level GPT, trained on docstrings, learns Python.

    gpuwise train examples/char_gpt.py:job --steps 200 --export char-gpt.safetensors
    gpuwise train examples/lora.py:job --adapter lora --steps 200 --micro-batch 16
    gpuwise plan examples/lora.py:job --adapter lora --epochs 1

The loss on held-out source code falls from 2.4 nats a character to 1.7; the
model's own weights do not change.
"""

from __future__ import annotations

import sysconfig
from functools import cache
from pathlib import Path

import torch
from char_gpt import ALPHABET, Windows
from safetensors.torch import load_model
from torch import Tensor, nn

from gpuwise import Job
from gpuwise.job.models.gpt2 import Gpt2, Gpt2Config
from gpuwise.job.models.language import next_token_batch, token_loss

BASE = Path("char-gpt.safetensors").absolute()  # what the first command writes
SEQ_LEN, STRIDE = 64, 32
CHARACTERS, HELD_OUT, EVALUATED = 200_000, 20_000, 128


def pretrained() -> nn.Module:
    """The model of char_gpt.py with the weights that were trained there; without them where only shapes matter."""
    model = Gpt2(Gpt2Config(vocabulary=len(ALPHABET), positions=SEQ_LEN, width=96, layers=3, heads=4, dropout=0.0))
    if next(model.parameters()).is_meta:
        return model
    if not BASE.is_file():
        raise FileNotFoundError(
            f"{BASE.name} is not here; train it: gpuwise train examples/char_gpt.py:job --steps 200 --export {BASE.name}"
        )
    load_model(model, BASE)
    return model


@cache
def splits() -> tuple[Tensor, Tensor]:
    """Source code of asyncio, whose docstrings char_gpt.py does not read: training and held-out characters, int64."""
    found, number = "", {character: index for index, character in enumerate(ALPHABET)}
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("asyncio/*.py")):
        found += path.read_text(encoding="utf-8", errors="replace")
        if len(found) >= CHARACTERS:
            break
    codes = torch.tensor([number.get(character, number["?"]) for character in found[:CHARACTERS]])
    return codes[:-HELD_OUT], codes[-HELD_OUT:]


@torch.no_grad()
def evaluate(model: nn.Module) -> dict[str, float]:
    held_out = Windows(splits()[1], seq_len=SEQ_LEN, stride=SEQ_LEN)
    device = next(model.parameters()).device
    samples = [held_out[index] for index in range(EVALUATED)]
    batch = {key: torch.stack([sample[key] for sample in samples]).to(device) for key in samples[0]}
    return {"held_out_loss": token_loss(model, batch).item()}


job = Job(
    model=pretrained,
    batch=lambda n: next_token_batch(n, vocabulary=len(ALPHABET), seq_len=SEQ_LEN),
    loss=token_loss,
    learning_rate=3e-3,
    schedule="cosine",
    warmup_steps=20,
    clip_norm=1.0,
    data=lambda: Windows(splits()[0], seq_len=SEQ_LEN, stride=STRIDE),
    samples=(CHARACTERS - HELD_OUT - SEQ_LEN - 1) // STRIDE + 1,
    evaluate=evaluate,
    name="lora",
    sample_unit="token",
    tokens_per_sample=SEQ_LEN,
    seq_len=SEQ_LEN,
)
