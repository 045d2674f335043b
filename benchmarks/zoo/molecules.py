"""MoFlow (Zang and Wang 2020, arXiv:2006.10137) over ZINC250k, as NVIDIA's DeepLearningExamples train it: an invertible network
from molecules to noise, whose reverse makes molecules.

Sizes are those of PyTorch/DrugDiscovery/MoFlow/moflow/config.py: 40 places for atoms of 10 kinds, 4 kinds of bonds; ten flows
over bonds, 38 over atoms, each of which changes one atom.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.zoo.entry import EXAMPLES, Entry, Reading, Unscored
from gpuwise.job import Job

ATOMS, KINDS, BONDS = 40, 10, 4
FOLD, BOND_FLOWS, BOND_WIDTHS = 20, 10, (512, 512)
ATOM_FLOWS, GRAPH_WIDTH, ATOM_WIDTHS = 38, 256, (512, 64)
NOISE = 0.6


class ActNorm(nn.Module):
    """A shift and a scale for each of the numbers along dimension 1; its determinant is that of the scales."""

    def __init__(self, *shape: int):
        super().__init__()
        self.loc, self.scale = nn.Parameter(torch.zeros(shape)), nn.Parameter(torch.ones(shape))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        elements = prod(x.shape[2:])
        return self.scale * (x + self.loc), elements * self.scale.abs().log().sum()

    def reverse(self, y: Tensor) -> Tensor:
        return y / self.scale - self.loc


class BondFlow(nn.Module):
    """Half of the channels shift and scale the other half (section 3.2.1): (n, 1600, 2, 2) -> the same."""

    def __init__(self, swap: bool):
        super().__init__()
        channels, layers = BONDS * FOLD**2, []
        self.norm, self.swap, width = ActNorm(1, channels, 1, 1), swap, channels // 2
        for outside in BOND_WIDTHS:
            layers += [nn.Conv2d(width, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(inplace=True)]
            width = outside
        self.layers = nn.Sequential(*layers, nn.Conv2d(width, channels, 3, padding=1))

    def _halves(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x.chunk(2, 1)
        return (b, a) if self.swap else (a, b)

    def _joined(self, kept: Tensor, changed: Tensor) -> Tensor:
        return torch.cat([changed, kept] if self.swap else [kept, changed], 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, determinant = self.norm(x)
        kept, changed = self._halves(x)
        scale, shift = self.layers(kept).chunk(2, 1)
        out = (changed + shift) * torch.sigmoid(scale)
        return self._joined(kept, out), determinant + F.logsigmoid(scale).flatten(1).sum(1)

    def reverse(self, y: Tensor) -> Tensor:
        kept, changed = self._halves(y)
        scale, shift = self.layers(kept).chunk(2, 1)
        return self.norm.reverse(self._joined(kept, changed * (1 + torch.exp(-scale)) - shift))  # type: ignore[no-any-return]


class AtomFlow(nn.Module):
    """All atoms but one shift and scale that one, through the bonds between them (section 3.2.2): (n, 40, 10) -> the same."""

    def __init__(self, atom: int):
        super().__init__()
        self.norm = ActNorm(1, ATOMS, 1)
        self.own, self.edges = nn.Linear(KINDS, GRAPH_WIDTH), nn.Linear(KINDS, GRAPH_WIDTH * BONDS)
        widths = (GRAPH_WIDTH, *ATOM_WIDTHS)
        self.norms = nn.ModuleList(nn.BatchNorm2d(ATOMS) for _ in widths)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, (*widths[1:], 2 * KINDS), strict=True))
        mask = torch.ones(ATOMS, KINDS)
        mask[atom] = 0
        self.register_buffer("mask", mask)

    def _scale_and_shift(self, bonds: Tensor, atoms: Tensor) -> tuple[Tensor, Tensor]:
        nodes = atoms.unsqueeze(2)
        edges = self.edges(nodes).view(-1, ATOMS, GRAPH_WIDTH, BONDS)
        x = self.own(nodes) + torch.einsum("bemn,bnce->bmc", bonds, edges).unsqueeze(2)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = layer(F.relu(norm(x.to(memory_format=torch.channels_last)), inplace=True))
        scale, shift = x.squeeze(2).chunk(2, -1)
        return scale, shift

    def forward(self, bonds: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        x, determinant = self.norm(x)
        kept = self.mask * x
        scale, shift = self._scale_and_shift(bonds, kept)
        out = kept + (1 - self.mask) * (x + shift) * torch.sigmoid(scale)
        return out, determinant + F.logsigmoid(scale).flatten(1).sum(1)

    def reverse(self, bonds: Tensor, y: Tensor) -> Tensor:
        kept = self.mask * y
        scale, shift = self._scale_and_shift(bonds, kept)
        return self.norm.reverse(kept + (1 - self.mask) * (y * (1 + torch.exp(-scale)) - shift))  # type: ignore[no-any-return]


class MoFlow(nn.Module):
    """bonds (n, 4, 40, 40), atoms (n, 40, 10) -> noise of the same shapes, and the determinants of both (n,)."""

    def __init__(self) -> None:
        super().__init__()
        self.bonds = nn.ModuleList(BondFlow(bool(i % 2)) for i in range(BOND_FLOWS))
        self.atoms = nn.ModuleList(AtomFlow(atom) for atom in range(ATOM_FLOWS))
        self.spread = nn.Parameter(torch.zeros(1))

    def forward(self, bonds: Tensor, atoms: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        atoms, by_atoms = atoms + torch.rand_like(atoms) * NOISE, torch.zeros((), device=atoms.device)
        for flow in self.atoms:
            atoms, determinant = flow(bonds, atoms)
            by_atoms = by_atoms + determinant
        x, by_bonds = _folded(bonds + torch.rand_like(bonds) * NOISE), torch.zeros((), device=atoms.device)
        for flow in self.bonds:
            x, determinant = flow(x)
            by_bonds = by_bonds + determinant
        return _unfolded(x), atoms, by_bonds, by_atoms

    def reverse(self, bonds: Tensor, atoms: Tensor) -> tuple[Tensor, Tensor]:
        """Molecules of noise: first their bonds, then their atoms."""
        x = _folded(bonds.to(memory_format=torch.channels_last))
        for flow in reversed(self.bonds):
            x = flow.reverse(x)  # type: ignore[operator]
        both = _unfolded(x)
        likely = ((both + both.transpose(2, 3)) / 2).softmax(dim=1)
        chosen = torch.floor(likely / likely.amax(dim=1, keepdim=True)).to(memory_format=torch.channels_last)
        for flow in reversed(self.atoms):
            atoms = flow.reverse(chosen, atoms)  # type: ignore[operator]
        return chosen, atoms


def _folded(x: Tensor) -> Tensor:
    n, channels, side, _ = x.shape
    parts = x.reshape(n, channels, side // FOLD, FOLD, side // FOLD, FOLD).permute(0, 1, 3, 5, 2, 4).contiguous()
    return parts.view(n, channels * FOLD**2, side // FOLD, side // FOLD)


def _unfolded(x: Tensor) -> Tensor:
    n, channels, side, _ = x.shape
    parts = x.reshape(n, channels // FOLD**2, FOLD, FOLD, side, side).permute(0, 1, 4, 2, 5, 3).contiguous()
    return parts.view(n, channels // FOLD**2, side * FOLD, side * FOLD)


def molecules(n: int) -> dict[str, Tensor]:
    """Bonds (n, 4, 40, 40) with channels innermost, and atoms (n, 40, 10)."""
    bonds = torch.rand(n, BONDS, ATOMS, ATOMS).contiguous(memory_format=torch.channels_last)
    return {"bonds": bonds, "atoms": torch.rand(n, ATOMS, KINDS)}


def likelihood(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """In training the negative log likelihood a number; else molecules are made of noise."""
    if not model.training:
        bonds, atoms = model.reverse(batch["bonds"], batch["atoms"])  # type: ignore[operator]
        return bonds.sum() + atoms.sum()  # type: ignore[no-any-return]
    bonds, atoms, by_bonds, by_atoms = model(batch["bonds"], batch["atoms"])
    total = torch.zeros((), device=bonds.device)
    for noise, determinant in ((bonds.flatten(1), by_bonds), (atoms.flatten(1), by_atoms)):
        spread = model.spread * torch.ones(noise.shape[1], device=noise.device)  # type: ignore[operator]
        each = (spread + 1.8379) / 2 + 0.5 * noise * noise * torch.exp(-spread)
        total = total + ((each.sum(1) - determinant) / noise.shape[1]).mean()
    return total


def _channels_last() -> nn.Module:
    return MoFlow().to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def job_of(name: str, sizes: dict[str, int], *, half: bool) -> Job:
    """moflow, channels last."""
    return Job(_channels_last, molecules, likelihood, optimizer="adam", clip_norm=1.0, name=name)


def _read(row: Any) -> Reading | Unscored:
    return Reading("moflow")


JOBS = {"moflow": job_of}
ENTRIES = (Entry(EXAMPLES, "MoFlow", _read),)
