"""grouped_experts: the experts of gpuwise's own mixtures as engines run them, in two grouped products a layer.

The model runs its experts one after the other, each on as many rows. Engines keep the weights of all experts in one tensor and
multiply every row with those of its own expert, so that a pass reads the weights of the experts that its tokens choose.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from gpuwise.job.models.llama import SwiGlu
from gpuwise.job.models.mixtral import MixtureOfExperts
from gpuwise.tracing.patching import patched


@contextmanager
def grouped_experts(model: nn.Module) -> Iterator[None]:
    """Within it, mixtures whose experts are whole run them as grouped products: for recordings, which see shapes alone."""
    with ExitStack() as replaced:
        for module in model.modules():
            if isinstance(module, MixtureOfExperts) and not any(isinstance(p, DTensor) for p in module.experts.parameters()):
                replaced.enter_context(patched(module, "run_experts", _Grouped(module)))
        yield


class _Grouped:
    """Runs the experts of a mixture on rows (n, width), in the order of the experts."""

    def __init__(self, mixture: MixtureOfExperts):
        expert = mixture.experts[0]
        assert isinstance(expert, SwiGlu)
        self._count, self._into, self._out = len(mixture.experts), expert.gate.weight, expert.down.weight

    def __call__(self, rows: Tensor) -> Tensor:
        hidden, width = self._into.shape
        ends = rows.new_zeros(self._count, dtype=torch.int32)
        gate, up = torch._grouped_mm(rows, self._weights(self._into, width, 2 * hidden), ends).chunk(2, dim=-1)
        return torch._grouped_mm(F.silu(gate) * up, self._weights(self._out, hidden, width), ends)

    def _weights(self, like: Tensor, rows: int, columns: int) -> Tensor:
        """Weights of all experts by their shape, (experts, rows, columns), the rows innermost as engines keep them."""
        return like.new_empty(self._count, columns, rows).transpose(1, 2)
