"""Weights that other libraries load, and a state that a model and an optimizer go on with."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from tests.fault.checkpoint_faults import Quick, same
from torch import nn

from gpuwise.errors import InputError
from gpuwise.job.torchvision_cpu import make_importable
from gpuwise.runtime.build.optimizers import hidden_matrices, make_optimizer
from gpuwise.runtime.checkpoint import (
    CheckpointStore,
    Saver,
    export_weights,
    pack,
    plain_weights,
    restore_optimizer,
    restore_weights,
)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return x + self.linear(x).relu()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("seen", torch.tensor(3))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def wrapped_model():
    """As torch.compile and PyTorch's checkpoint wrapper would wrap it."""
    model = nn.Module()
    model.add_module("_orig_mod", Tied())
    inner = nn.Module()
    inner.add_module("_checkpoint_wrapped_module", model._orig_mod.blocks[0])
    model._orig_mod.blocks[0] = inner
    return model


def _library(name):
    """Both of them import torchvision, which may be of another build than torch."""
    make_importable()
    return pytest.importorskip(name)


PLAIN = {
    "embedding.weight",
    "blocks.0.linear.weight",
    "blocks.0.linear.bias",
    "blocks.1.linear.weight",
    "blocks.1.linear.bias",
    "seen",
}


@pytest.mark.parametrize("make", [Tied, wrapped_model])
def test_names_are_plain_and_tied_weights_are_there_once(make, tmp_path):
    path = export_weights(make(), tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "model.safetensors"
    assert load_file(path).keys() == PLAIN
    assert [file.name for file in path.parent.iterdir()] == ["model.safetensors"]


def test_what_was_there_stays_when_it_cannot_be_written(tmp_path):
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(InputError, match="cannot write"):
        export_weights(Tied(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_transformers_loads_it(tmp_path):
    transformers = _library("transformers")
    config = transformers.GPT2Config(
        n_layer=2, n_embd=16, n_head=2, vocab_size=11, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    assert model.lm_head.weight is model.transformer.wte.weight
    path = export_weights(model, tmp_path)
    assert "lm_head.weight" not in load_file(path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["GPT2LMHeadModel"]
    loaded, answer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(answer.values())
    assert loaded.lm_head.weight is loaded.transformer.wte.weight
    assert all(same(loaded.state_dict()[name], tensor) for name, tensor in model.state_dict().items())


def test_timm_loads_it(tmp_path):
    timm = _library("timm")
    model = timm.create_model("resnet10t", pretrained=False, num_classes=3)
    path = export_weights(model, tmp_path / "weights.safetensors")
    loaded = timm.create_model("resnet10t", pretrained=False, num_classes=3, checkpoint_path=str(path))
    assert all(same(loaded.state_dict()[name], tensor) for name, tensor in model.state_dict().items())


def test_the_model_of_a_checkpoint_is_loaded_by_transformers_as_it_is(tmp_path):
    """A checkpoint's own model.safetensors, without an export."""
    transformers = _library("transformers")
    config = transformers.GPT2Config(
        n_layer=1, n_embd=16, n_head=2, vocab_size=11, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    checkpoint = CheckpointStore(tmp_path, files=Quick()).write(pack({"model": model.state_dict()}), step=1)
    config.save_pretrained(checkpoint.path)
    loaded = transformers.GPT2LMHeadModel.from_pretrained(checkpoint.path)
    assert all(same(loaded.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    assert CheckpointStore(tmp_path).latest().step == 1  # a file more does no harm


# Going on.


def steps(model, optimizer, batches):
    losses = []
    for batch in batches:
        loss = nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adamw", "adafactor", "muon"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_goes_on_to_the_bit(name, dtype, tmp_path):
    def make():
        model = Tied().to(dtype)
        return model, make_optimizer(name, model.parameters(), 1e-2, hidden=hidden_matrices(model) if name == "muon" else [])

    torch.manual_seed(0)
    batches = torch.randint(0, 5, (8, 2, 3))
    model, optimizer = make()
    steps(model, optimizer, batches[:4])
    Saver(CheckpointStore(tmp_path, files=Quick())).save_now(
        4, {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    )
    expected = steps(model, optimizer, batches[4:])

    other, its_optimizer = make()
    loaded = CheckpointStore(tmp_path).latest().load()
    restore_weights(other, loaded["model"])
    restore_optimizer(its_optimizer, loaded["optimizer"])
    assert steps(other, its_optimizer, batches[4:]) == expected
    assert same(other.state_dict(), model.state_dict())
    assert other.head.weight is other.embedding.weight


def test_weights_are_copied_into_the_layout_they_have():
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    weight = model.weight
    saved = {"weight": torch.randn(4, 3, 3, 3), "bias": torch.randn(4)}
    restore_weights(model, saved)
    assert model.weight is weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert weight.equal(saved["weight"])


def test_wrapped_models_take_plain_weights():
    model = wrapped_model()
    saved = {name: torch.full_like(tensor, 2) for name, tensor in plain_weights(model.state_dict()).items()}
    restore_weights(model, saved)
    assert all(tensor.eq(2).all() for tensor in model.state_dict().values())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda s: s.pop("seen"), "it lacks seen"),
        (lambda s: s.update(other=torch.ones(1)), "its other is not here"),
        (lambda s: s.update(seen=torch.tensor(1.0)), r"seen is float32 \[\], here int64 \[\]"),
        (
            lambda s: s.update({"blocks.0.linear.bias": torch.ones(7)}),
            r"blocks.0.linear.bias is float32 \[7\], here float32 \[4\]",
        ),
    ],
)
def test_weights_of_another_model_are_refused(change, why):
    model = Tied()
    saved = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    change(saved)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(InputError, match=why):
        restore_weights(model, saved)
    assert all(same(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_the_state_of_another_optimizer_is_refused():
    model = Tied()
    with pytest.raises(InputError, match="of another optimizer"):
        restore_optimizer(torch.optim.AdamW(model.parameters()), torch.optim.SGD([model.head.weight]).state_dict())


def test_a_state_keeps_its_dtype():
    """PyTorch would make it that of the parameters."""
    parameter = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer, other = (torch.optim.SGD([parameter], lr=0.1, momentum=0.9) for _ in range(2))
    optimizer.state[parameter]["momentum_buffer"] = torch.tensor([1.0, 1e-9, 3.1415926])
    restore_optimizer(other, optimizer.state_dict())
    assert same(other.state[parameter]["momentum_buffer"], optimizer.state[parameter]["momentum_buffer"])


def test_low_bit_states_are_restored(tmp_path):
    torchao = pytest.importorskip("torchao.optim")
    from torchao.optim.subclass_8bit import OptimState8bit

    parameter = nn.Parameter(torch.ones(64, 128))
    optimizer, other = (torchao.AdamW8bit([parameter], lr=0.1) for _ in range(2))
    state = OptimState8bit.zeros((64, 128))
    state.copy_(torch.randn(64, 128))
    optimizer.state[parameter] = {"step": torch.tensor(4.0), "exp_avg": state}
    CheckpointStore(tmp_path, files=Quick()).write(pack({"optimizer": optimizer.state_dict()}), step=1)
    restore_optimizer(other, CheckpointStore(tmp_path).latest().load()["optimizer"])
    restored = other.state[parameter]["exp_avg"]
    assert type(restored) is OptimState8bit
    assert same(restored.codes, state.codes)
    assert same(restored.dequantize(), state.dequantize())
    assert same(other.param_groups[0]["lr"], torch.tensor(0.1))
