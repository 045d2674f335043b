"""DLRM (Naumov et al. 2019): embedding tables and a perceptron, joined by dot products."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Distinct values of the 26 categorical columns of the Criteo Kaggle Display Advertising data set, as the DLRM
# repository lists them (facebookresearch/dlrm, Kaggle run); five columns are hashed down to a million rows here.
CRITEO_ROWS = (
    1460,
    583,
    10_131_227,
    2_202_608,
    305,
    24,
    12_517,
    633,
    3,
    93_145,
    5683,
    8_351_593,
    3194,
    27,
    14_992,
    5_461_306,
    10,
    5652,
    2173,
    4,
    7_046_547,
    18,
    15,
    286_181,
    105,
    142_572,
)
MAX_ROWS = 1_000_000


@dataclass(frozen=True)
class DlrmConfig:
    """The default holds 5.57 M rows of 64 numbers: 1.43 GB in fp32."""

    dense: int = 13
    tables: tuple[int, ...] = tuple(min(rows, MAX_ROWS) for rows in CRITEO_ROWS)
    width: int = 64
    bottom: tuple[int, ...] = (512, 256, 64)
    top: tuple[int, ...] = (512, 512, 256, 1)


def _perceptron(inside: int, widths: tuple[int, ...], *, last_relu: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Linear(inside, width), nn.ReLU()]
        inside = width
    return nn.Sequential(*(layers if last_relu else layers[:-1]))


class Dlrm(nn.Module):
    """Dense features (n, dense) and one row index a table (n, tables) -> logit of a click (n,)."""

    def __init__(self, config: DlrmConfig | None = None):
        super().__init__()
        self.config = config = config or DlrmConfig()
        vectors = len(config.tables) + 1
        self.bottom = _perceptron(config.dense, config.bottom, last_relu=True)
        self.tables = nn.ModuleList(nn.Embedding(rows, config.width) for rows in config.tables)
        self.top = _perceptron(vectors * (vectors - 1) // 2 + config.width, config.top, last_relu=False)
        self.init_weights()

    def init_weights(self) -> None:
        """Default linear layers; a table of r rows is Uniform(-1/sqrt(r), 1/sqrt(r)), as in the DLRM paper's code."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                module.reset_parameters()
            elif isinstance(module, nn.Embedding):
                bound = module.num_embeddings**-0.5
                nn.init.uniform_(module.weight, -bound, bound)

    def forward(self, dense: Tensor, indices: Tensor) -> Tensor:
        x = self.bottom(dense)
        rows = [table(index) for table, index in zip(self.tables, indices.unbind(1), strict=True)]
        vectors = torch.stack([x, *(row.to(x.dtype) for row in rows)], dim=1)
        products = vectors @ vectors.transpose(1, 2)
        below = torch.tril_indices(vectors.shape[1], vectors.shape[1], offset=-1, device=x.device)
        return self.top(torch.cat([x, products[:, below[0], below[1]]], dim=1)).squeeze(1)


def click_batch(n: int, *, dense: int, tables: tuple[int, ...]) -> dict[str, Tensor]:
    """Random dense features (n, dense), row indices (n, tables) int64 and clicks (n,) in {0., 1.}."""
    indices = torch.stack([torch.randint(0, rows, (n,)) for rows in tables], dim=1)
    return {"dense": torch.randn(n, dense), "indices": indices, "clicks": torch.randint(0, 2, (n,)).float()}


def click_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Mean binary cross entropy."""
    return F.binary_cross_entropy_with_logits(model(batch["dense"], batch["indices"]).float(), batch["clicks"])
