"""What is trained: models, their data and losses, the same for every contestant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

Batch = dict[str, Tensor]
THREADS = 2
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 0.01  # AdamW's own in PyTorch


@dataclass(frozen=True)
class Work:
    """model: made anew for each run; loss: of a model and a batch; columns: the data, one row a sample.

    warm, timed: steps before, and within, the time that is taken. device: PyTorch's name of where it runs. threads: of a
    CPU's operations; None leaves them as they are.
    """

    text: str
    model: Callable[[], nn.Module]
    loss: Callable[[nn.Module, Batch], Tensor]
    columns: Callable[[], Batch]
    batch: int
    warm: int
    timed: int
    device: str = "cpu"
    threads: int | None = THREADS

    def rows(self) -> Rows:
        return Rows(self.columns())

    def with_loss(self, model: nn.Module) -> nn.Module:
        """The model that gives its loss itself, as Hugging Face's Trainer wants it."""
        return model if hasattr(model, "config") else WithLoss(model, self.loss)


class Rows(Dataset[Batch]):
    """A map-style data set as most people write one."""

    def __init__(self, columns: Batch):
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int) -> Batch:
        return {name: column[index] for name, column in self.columns.items()}


class WithLoss(nn.Module):
    def __init__(self, model: nn.Module, loss: Callable[[nn.Module, Batch], Tensor]):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"loss": self.loss(self.model, {"x": x, "y": y})}


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))


def _squared(model: nn.Module, batch: Batch) -> Tensor:
    return F.mse_loss(model(batch["x"]), batch["y"])


def _points(count: int = 10_000, width: int = 20) -> Batch:
    x = torch.randn(count, width, generator=_generator())
    return {"x": x, "y": x.sum(1, keepdim=True)}


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=8192,
        n_positions=128,
        n_embd=384,
        n_layer=6,
        n_head=6,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        use_cache=False,
    )
    return GPT2LMHeadModel(config)


def gpt2_124m() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(use_cache=False))


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    # The sizes of google/bert_uncased_L-4_H-512_A-8, "BERT-small" of Turc et al. (2019).
    return BertForSequenceClassification(
        BertConfig(
            hidden_size=512,
            num_hidden_layers=4,
            num_attention_heads=8,
            intermediate_size=2048,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            num_labels=2,
        )
    )


def _resnet() -> nn.Module:
    import timm

    return timm.create_model("resnet18", num_classes=100)


def _own(model: nn.Module, batch: Batch) -> Tensor:
    """The loss that a model of transformers computes itself."""
    return model(**batch).loss


def _entropy(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


def text_rows(count: int, length: int, vocabulary: int) -> Batch:
    ids = torch.randint(vocabulary, (count, length), generator=_generator())
    return {"input_ids": ids, "labels": ids}


def _sentences() -> Batch:
    ids = torch.randint(30_522, (512, 64), generator=_generator())
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids[:, 0] % 2}


def _images() -> Batch:
    x = torch.randn(512, 3, 64, 64, generator=_generator())
    return {"x": x, "y": torch.arange(512) % 100}


def _wide(width: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


MLP = Work("MLP 20-64-32-1, batch 32, 10,000 rows", _mlp, _squared, _points, batch=32, warm=500, timed=6000)
MODELS = {
    "gpt2": Work(
        "GPT-2 shape, 6 layers, 384 wide, 4 × 128 tokens",
        _gpt2,
        _own,
        lambda: text_rows(512, 128, 8192),
        batch=4,
        warm=2,
        timed=8,
    ),
    "bert": Work("BERT-small (4 layers, 512 wide), 4 × 64 tokens", _bert, _own, _sentences, batch=4, warm=2, timed=10),
    "resnet18": Work("ResNet-18 (timm), 16 images of 64 × 64", _resnet, _entropy, _images, batch=16, warm=3, timed=15),
}
# Runs that are saved: with AdamW a state is three times the parameters. Steps are long enough to be told apart by a clock.
SAVED = {
    "MLP, 10 MB": Work("MLP 640 wide", _wide(640), _squared, lambda: _points(2048, 640), batch=256, warm=20, timed=3000),
    "MLP, 500 MB": Work("MLP 4,560 wide", _wide(4560), _squared, lambda: _points(1024, 4560), batch=32, warm=5, timed=120),
    "GPT-2 124M": Work(
        "GPT-2 124M, 1 × 64 tokens", gpt2_124m, _own, lambda: text_rows(256, 64, 50_257), batch=1, warm=3, timed=60
    ),
}
TABLES = {"small": {"mlp": MLP}, "models": MODELS, "saves": SAVED}
