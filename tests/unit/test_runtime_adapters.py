"""Adapters, 4-bit weights and fp8 products: real steps on the CPU, and what each holds, to the byte."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gpuwise.errors import InputError, MissingDependencyError, UnsupportedError
from gpuwise.job import Job
from gpuwise.runtime.build.adapters import adapted, parameter_count
from gpuwise.runtime.build.linears import inner_linears
from gpuwise.runtime.build.program import Program, build
from gpuwise.strategy import Strategy
from gpuwise.trace import CATEGORIES, Trace
from gpuwise.tracing import record

pytestmark = pytest.mark.filterwarnings("ignore")  # of peft, torchao and what they import

WIDTH, RANK, LAYERS, CLASSES = 64, 4, 2, 5
LINEARS = LAYERS * 2 * 4 * WIDTH * WIDTH  # weights of the blocks' linear layers
ADAPTERS = LAYERS * 2 * RANK * 5 * WIDTH


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Words(nn.Module):
    """An embedding, two blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def batch(n: int) -> dict[str, Tensor]:
    return {"words": torch.randint(0, 11, (n, 16)), "classes": torch.randint(0, CLASSES, (n, 16))}


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch["words"]).float().flatten(0, 1), batch["classes"].flatten())


JOB = Job(model=Words, batch=batch, loss=loss, learning_rate=1e-2, name="words")


def program(**techniques: Any) -> Program:
    torch.manual_seed(0)
    return build(JOB, Strategy(micro_batch=4, adapter_rank=RANK, **techniques), "cpu")


def losses(built: Program, steps: int = 8) -> list[float]:
    torch.manual_seed(1)
    same = batch(4)
    return [float(built.step([same])) for _ in range(steps)]


def held_bytes(trace: Trace, category: str) -> int:
    storages = trace.storages
    stays = (storages.born < 0) & (storages.died >= len(trace.sequence))
    return int(storages.size_bytes[stays & (storages.category == CATEGORIES.index(category))].sum())


def test_all_linear_layers_but_the_head_are_inner() -> None:
    assert inner_linears(Words()) == [f"blocks.{i}.{name}" for i in range(LAYERS) for name in ("up", "down")]
    assert inner_linears(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))) == ["0"]
    # The last layer is no head where it stands in a block that repeats.
    assert inner_linears(nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2)))) == ["0.0", "1.0"]
    # What reads its layer's weight by itself cannot have it replaced.
    assert inner_linears(nn.Sequential(nn.MultiheadAttention(8, 2), nn.Linear(8, 2))) == []


@pytest.mark.parametrize("adapter", ["lora", "qlora"])
@pytest.mark.parametrize("precision", ["fp32", "amp-bf16", "bf16"])
def test_an_adapter_learns_and_all_else_stays(adapter: str, precision: str) -> None:
    built = program(adapter=adapter, precision=precision)
    trained = {name: p for name, p in built.model.named_parameters() if p.requires_grad}
    assert all("lora_" in name for name in trained)
    assert sum(p.numel() for p in trained.values()) == ADAPTERS
    assert {p.dtype for p in trained.values()} == {torch.bfloat16 if precision == "bf16" else torch.float32}
    frozen = {name: p.detach().clone() for name, p in built.model.named_parameters() if not p.requires_grad}
    result = losses(built)
    assert result[-1] < result[0] - 0.05
    assert all(torch.equal(dict(built.model.named_parameters())[name], value) for name, value in frozen.items())


def test_an_adapter_begins_as_the_model_it_adapts() -> None:
    assert losses(program(adapter="lora"), 1) == losses(program(), 1)


def test_an_adapter_learns_the_same_with_recomputation() -> None:
    assert losses(program(adapter="lora")) == losses(program(adapter="lora", recompute="full"))


def test_four_bit_weights_are_near_those_they_came_from() -> None:
    [plain], [packed] = losses(program(), 1), losses(program(adapter="qlora"), 1)
    assert plain != packed
    assert packed == pytest.approx(plain, rel=0.05)


def test_a_packed_weight_counts_what_it_stands_for() -> None:
    built = program(adapter="qlora")
    assert sum(parameter_count(p) for p in built.model.parameters()) == sum(p.numel() for p in Words().parameters()) + ADAPTERS
    assert sum(p.nbytes for p in built.model.parameters() if p.dtype == torch.uint8) == LINEARS // 2


def test_a_model_without_an_adapter_is_left_alone() -> None:
    model = Words()
    names = [name for name, _ in model.named_parameters()]
    assert adapted(model, Strategy()) is model
    assert [name for name, _ in model.named_parameters()] == names
    assert all(p.requires_grad for p in model.parameters())


def test_a_model_with_nothing_to_adapt_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="no linear layer"):
        adapted(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 2)), Strategy(adapter="lora"))


def test_four_bits_and_fp8_exclude_each_other() -> None:
    with pytest.raises(InputError, match="4 bits"):
        program(adapter="qlora", precision="fp8")


@pytest.mark.parametrize(
    ("package", "techniques"),
    [("peft", {"adapter": "lora"}), ("bitsandbytes", {"adapter": "qlora"}), ("torchao", {"precision": "fp8"})],
)
def test_a_missing_package_is_named(package: str, techniques: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    hide(package, monkeypatch)
    with pytest.raises(MissingDependencyError, match=package):
        program(**techniques)


def hide(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original: Callable[..., Any] = importlib.import_module

    def import_module(name: str, *args: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return original(name, *args)

    monkeypatch.setattr(importlib, "import_module", import_module)


def test_what_a_lora_step_holds() -> None:
    trace = record(JOB, Strategy(micro_batch=4, adapter="lora", adapter_rank=RANK))
    weights = sum(p.numel() for p in Words().parameters())
    assert trace.header.parameters == weights + ADAPTERS
    assert trace.header.trainable_parameters == ADAPTERS
    assert held_bytes(trace, "parameter") == 4 * (weights + ADAPTERS)
    moments = 2 * 4 * ADAPTERS
    assert moments <= held_bytes(trace, "optimizer_state") <= moments + 8 * 4 * LAYERS * 4  # and step counts


@pytest.mark.parametrize("precision", ["amp-bf16", "bf16"])
def test_what_a_qlora_step_holds(precision: str) -> None:
    trace = record(JOB, Strategy(micro_batch=4, adapter="qlora", adapter_rank=RANK, precision=precision))
    weights = sum(p.numel() for p in Words().parameters())
    assert trace.header.parameters == weights + ADAPTERS
    layers, blocks = 2 * LAYERS, LINEARS // 64
    scales = blocks + 4 * -(-(blocks // layers) // 256) * layers  # a byte for 64 weights, fp32 for 256 of those
    # A layer: NF4's 16 values, an offset, and a copy of the table of scales (quantize_blockwise of bitsandbytes 0.50).
    tables = layers * (4 * 16 + 4 + 4 * 256)
    others = (weights - LINEARS + ADAPTERS) * (2 if precision == "bf16" else 4)
    assert held_bytes(trace, "parameter") == LINEARS // 2 + scales + tables + others


def test_fp8_products_learn_as_bf16_ones_do() -> None:
    fp8, bf16 = losses(program(precision="fp8")), losses(program(precision="amp-bf16"))
    assert fp8 != bf16
    assert fp8 == pytest.approx(bf16, rel=0.1, abs=0.02)


def test_fp8_leaves_weights_and_the_head_as_they_are() -> None:
    built = program(precision="fp8")
    kinds = {name: type(module).__name__ for name, module in built.model.named_modules() if isinstance(module, nn.Linear)}
    assert kinds.pop("head") == "Linear"
    assert set(kinds.values()) == {"Float8Linear"}
    assert {p.dtype for p in built.model.parameters()} == {torch.float32}
    assert all(p.requires_grad for p in built.model.parameters())


def test_fp8_on_a_model_whose_sides_do_not_suit_is_refused() -> None:
    job = Job(model=lambda: nn.Sequential(nn.Linear(10, 20), nn.Linear(20, 5)), batch=batch, loss=loss)
    with pytest.raises(UnsupportedError, match="16 divides"):
        build(job, Strategy(precision="fp8"), "cpu")


def test_fp8_with_an_adapter_converts_the_frozen_layers_only() -> None:
    built = program(precision="fp8", adapter="lora")
    kinds = {name: type(module).__name__ for name, module in built.model.named_modules() if isinstance(module, nn.Linear)}
    assert {name for name, kind in kinds.items() if kind == "Float8Linear"} == {
        f"blocks.{i}.{name}.base_layer" for i in range(LAYERS) for name in ("up", "down")
    }
    result = losses(built)
    assert result[-1] < result[0] - 0.05
