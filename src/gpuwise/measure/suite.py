"""The suite of `gpuwise validate --suite`: a dozen kinds of networks at sizes that fit the machine.

This module does not import PyTorch; the jobs themselves are in gpuwise.measure.suite_jobs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

from gpuwise.errors import unknown_name
from gpuwise.hardware.types import Chip

BASE_PEAK = 150e9  # fp32 operations per second at which the micro-batches below give steps of 0.05 to 1.5 s
LARGEST_SCALE = 256
LARGEST_SHARE = 0.6  # share of the memory; micro-batches are halved until the forecast is below it


@dataclass(frozen=True)
class Member:
    """One job of the suite.

    Attributes:
        name: name of the job.
        words: description of the job.
        micro_batch: samples per micro-batch on a machine with BASE_PEAK.
        seq_len: sequence length in tokens; None for other data.
        image_size: image size in pixels; None for other data.
    """

    name: str
    words: str
    micro_batch: int
    seq_len: int | None = None
    image_size: int | None = None


_ALL = [
    Member("mlp", "MLP on 20 columns, 11 k parameters", 512),
    Member("digits-cnn", "two convolutions on 28x28 digits, 0.42 M parameters", 64, image_size=28),
    Member("alexnet", "AlexNet, 61 M parameters", 8, image_size=224),
    Member("resnet50", "ResNet-50, 26 M parameters", 2, image_size=224),
    Member("vit", "ViT-S/16, 22 M parameters", 2, image_size=224),
    Member("bert", "BERT base, 110 M parameters", 1, seq_len=128),
    Member("gpt2", "GPT-2, 124 M parameters", 1, seq_len=128),
    Member("llama", "Llama of 8 layers of 512, 56 M parameters", 1, seq_len=256),
    Member("moe", "Mixtral of 4 layers of 512, 8 experts, 86 M parameters", 1, seq_len=256),
    Member("unet", "UNet of latent diffusion, 142 M parameters", 1, image_size=256),
    Member("lstm", "LSTM of 2 x 650 on words, 20 M parameters", 20, seq_len=35),
    Member("dlrm", "DLRM with tables of up to 100 k rows, 55 M parameters", 2048),
]

SUITE: dict[str, Member] = {member.name: member for member in _ALL}
"""All members by name, in the order they run."""


def members(names: tuple[str, ...] = ()) -> list[Member]:
    """The named members; all of them without names. Raises UnknownNameError."""
    for name in names:
        if name not in SUITE:
            raise unknown_name("member of the suite", name, list(SUITE), listing="gpuwise validate --help")
    return [SUITE[name] for name in dict.fromkeys(names)] if names else list(SUITE.values())


def scaled(member: Member, chip: Chip) -> int:
    """The micro-batch on a chip: the base's times a power of two, by the fp32 peak of the chip's datasheet."""
    peak = chip.peak_flops_per_s.get("fp32", BASE_PEAK)
    return member.micro_batch * min(LARGEST_SCALE, 2 ** int(log2(max(1.0, peak / BASE_PEAK))))
