"""DLRM (Naumov et al. 2019, arXiv:1906.00091) as NVIDIA's DeepLearningExamples train it on the clicks of Criteo, on one GPU.

Layers are the defaults of PyTorch/Recommendation/DLRM there: embeddings of 128 numbers, 13 numbers through 512, 256 and 128
units, products of all pairs of the 27 vectors, and 1,024, 1,024, 512, 256 and 1 units above. Tables are updated where a batch
has rows: SGD adds the gradients of those rows to the table in place.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from benchmarks.zoo.entry import EXAMPLES, Entry, Reading, Unscored
from gpuwise.job import Job

# Rows of the 26 tables together, of values that occur at least 15 times: the data set that the example calls small (its
# README, "Dataset guidelines"; facebookresearch/dlrm has the same cardinalities).
ROWS, TABLES, WIDTH, NUMBERS = 32_709_138, 26, 128, 13


class Rows(torch.autograd.Function):
    """Rows of the joint table, whose backward is SGD on those rows."""

    @staticmethod
    def forward(context: FunctionCtx, table: Tensor, index: Tensor, counted: Tensor) -> Tensor:
        context.table, context.index = table, index  # type: ignore[attr-defined]
        return table.index_select(0, index.flatten()).view(*index.shape, WIDTH)

    @staticmethod
    def backward(context: FunctionCtx, grad: Tensor) -> tuple[None, None, Tensor]:
        context.table.index_add_(0, context.index.flatten(), grad.flatten(0, 1), alpha=-1e-3)  # type: ignore[attr-defined]
        return None, None, grad.new_zeros(1)


def _layers(*widths: int, last: bool) -> nn.Sequential:
    modules: list[nn.Module] = []
    for inside, outside in pairwise(widths):
        modules += [nn.Linear(inside, outside), nn.ReLU(inplace=True)]
    return nn.Sequential(*(modules[:-1] if last else modules))


class Dlrm(nn.Module):
    """numbers (n, 13), index (n, 26) into the joint table -> logit of a click (n,)."""

    def __init__(self, rows: int = ROWS):
        super().__init__()
        self.register_buffer("table", torch.zeros(rows, WIDTH))
        self.counted = nn.Parameter(torch.zeros(1))  # so that backward reaches the table
        self.bottom = _layers(NUMBERS, 512, 256, WIDTH, last=False)
        pairs = torch.tensor([[i, j] for i in range(TABLES + 1) for j in range(i)]).t()
        self.register_buffer("pairs", (pairs[0] * (TABLES + 1) + pairs[1]).contiguous())
        self.top = _layers(WIDTH + pairs.shape[1] + 1, 1024, 1024, 512, 256, 1, last=True)  # one column of zeros aligns rows

    def forward(self, numbers: Tensor, index: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        rows = Rows.apply(self.table, index, self.counted)
        vectors = torch.cat([dense.unsqueeze(1), rows.to(dense.dtype)], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return self.top(torch.cat([dense, products, dense.new_zeros(len(dense), 1)], dim=1)).squeeze(1)


def click_batch(n: int, *, rows: int = ROWS) -> dict[str, Tensor]:
    return {
        "numbers": torch.rand(n, NUMBERS),
        "index": torch.randint(0, rows, (n, TABLES)),
        "clicked": torch.rand(n).round(),
    }


def click_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(batch["numbers"], batch["index"]).float(), batch["clicked"])


def job_of(name: str, sizes: dict[str, int], *, half: bool) -> Job:
    """dlrm: on the small data set."""
    return Job(partial(Dlrm), click_batch, click_loss, optimizer="sgd", name=name)


def _read(row: Any) -> Reading | Unscored:
    if row.num_gpus > 1 or row.model_detail != "small":
        return Unscored("tables divided among GPUs")
    return Reading("dlrm")


JOBS = {"dlrm": job_of}
ENTRIES = (Entry(EXAMPLES, "DLRM", _read),)
