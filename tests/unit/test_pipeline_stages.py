"""Models in pipeline stages, all in one process: loss and gradients are those of the whole model, or the cut is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpuwise.errors import GpuwiseError, InputError, UnsupportedError
from gpuwise.job.job import Batch
from gpuwise.job.models.bert import Bert, BertConfig
from gpuwise.job.models.gpt2 import Gpt2, Gpt2Config
from gpuwise.job.models.language import masked_word_batch, next_token_batch, token_loss, translation_batch
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.job.models.mixtral import Mixtral, MixtralConfig
from gpuwise.job.models.t5 import T5, T5Config
from gpuwise.job.models.vit import Vit, VitConfig
from gpuwise.job.torchvision_cpu import make_importable
from gpuwise.runtime.parallel.stages import ModelStage, stage_of
from gpuwise.runtime.parallel.stages_cut import balanced, cut_at
from gpuwise.runtime.parallel.stages_flow import Flow, check_flow
from gpuwise.runtime.parallel.stages_model import dry_model, names_of_tensors, paths_of_blocks, paths_of_edges

Loss = Callable[[nn.Module, Batch], Tensor]


def cut(model: nn.Module, loss: Loss, batch: Batch, stages: int) -> tuple[list[ModelStage], Flow]:
    blocks = paths_of_blocks(model)
    edges = paths_of_edges(model, blocks)
    device = next(model.parameters()).device
    dry = dry_model(model, blocks, edges, device=device)
    flow = dry.run(lambda part: loss(part, batch))
    check_flow(flow, blocks)
    where = cut_at(flow, stages, names_of_tensors(model, dry))
    return [stage_of(model, where, number, edges=edges, device=device, shares_buffers=True) for number in range(stages)], flow


def loss_of_stages(stages: list[ModelStage], flow: Flow, loss: Loss, batch: Batch) -> Tensor:
    tensors: tuple[Tensor, ...] = ()
    for stage in stages:
        stage.begin(flow, lambda model, number: loss(model, batch))
        tensors = stage(*tensors)
    assert isinstance(tensors, Tensor)
    return tensors


def check_equal(model: nn.Module, loss: Loss, batch: Batch, stages: int) -> list[ModelStage]:
    """Whole and in stages, which share their parameters, the model has the same loss and gradients."""
    torch.manual_seed(0)
    whole = loss(model, batch)
    whole.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    parts, flow = cut(model, loss, batch, stages)
    torch.manual_seed(0)
    found = loss_of_stages(parts, flow, loss, batch)
    found.backward()
    assert torch.equal(found, whole)
    names = {name for part in parts for name, _ in part.named_parameters()}
    assert names == {name for name, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients.get(name), rtol=1e-6, atol=1e-9)
    return parts


LANGUAGE = partial(next_token_batch, vocabulary=64, seq_len=16)


def hugging_face(kind: str, **config: object) -> nn.Module:
    make_importable()
    transformers = pytest.importorskip("transformers")
    made = getattr(transformers, f"{kind}Config")(vocab_size=64, use_cache=False, bos_token_id=1, eos_token_id=2, **config)
    return transformers.AutoModelForCausalLM.from_config(made, attn_implementation="sdpa")


def labelled(n: int) -> dict[str, Tensor]:
    return {"input_ids": LANGUAGE(n)["tokens"], "labels": LANGUAGE(n)["tokens"]}


def own_loss(model: nn.Module, batch: Batch) -> Tensor:
    return model(**batch).loss


def image_loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Batch], Loss]] = {
    "llama": (
        lambda: Llama(LlamaConfig(vocabulary=64, width=32, layers=5, heads=4, kv_heads=2, hidden=64)),
        LANGUAGE,
        token_loss,
    ),
    "mixtral": (
        lambda: Mixtral(MixtralConfig(vocabulary=64, width=32, layers=5, heads=4, kv_heads=2, hidden=64, experts=4)),
        LANGUAGE,
        token_loss,
    ),
    "gpt2": (lambda: Gpt2(Gpt2Config(vocabulary=64, positions=16, width=32, layers=5, heads=4)), LANGUAGE, token_loss),
    "bert": (
        lambda: Bert(BertConfig(vocabulary=64, positions=16, width=32, layers=5, heads=4, hidden=64)),
        partial(masked_word_batch, vocabulary=64, seq_len=16),
        token_loss,
    ),
    "vit": (
        lambda: Vit(VitConfig(image_size=32, width=32, layers=5, heads=4, hidden=64, classes=10)),
        lambda n: {"x": torch.randn(n, 3, 32, 32), "y": torch.randint(0, 10, (n,))},
        image_loss,
    ),
    "hf llama": (
        lambda: hugging_face(
            "Llama", hidden_size=32, intermediate_size=64, num_hidden_layers=5, num_attention_heads=4, num_key_value_heads=2
        ),
        labelled,
        own_loss,
    ),
    "hf mixtral": (
        lambda: hugging_face(
            "Mixtral",
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=5,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_local_experts=4,
        ),
        labelled,
        own_loss,
    ),
    "hf gpt2": (lambda: hugging_face("GPT2", n_embd=32, n_layer=5, n_head=4, n_positions=16), labelled, own_loss),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("stages", [2, 4])
def test_models_in_stages(name: str, stages: int):
    make, batch, loss = MODELS[name]
    torch.manual_seed(1)
    model = make()
    parts = check_equal(model, loss, batch(2), stages)
    kept = [sum(p.numel() for p in part.parameters()) for part in parts]
    assert max(kept) < sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", ["hf llama", "gpt2"])
def test_evaluation_in_stages(name: str):
    make, batch, loss = MODELS[name]
    model = make().eval()
    check_equal(model, loss, batch(2), 3)


def test_an_encoder_and_a_decoder():
    model = T5(T5Config(vocabulary=64, width=32, hidden=64, layers=3, heads=4, head_dim=8, dropout=0.0))
    check_equal(model, token_loss, translation_batch(2, vocabulary=64, seq_len=16), 3)


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(width, width), nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.inner(x)))


class Net(nn.Module):
    """Blocks with a residual around each, a stem and a head; `how` is a variation of forward."""

    def __init__(self, how: str = "", blocks: int = 4) -> None:
        super().__init__()
        self.how = how
        self.stem, self.head = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), nn.Linear(8, 2)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        first = x = self.stem(x)
        for number, block in enumerate(self.blocks):
            if self.how == "skip" and number == 3:
                x = x + first
            if self.how == "value" and x.sum() > 0:
                continue
            x = x + block(x)
            if self.how == "draw" and number == 1:
                x = x * torch.rand(8)
        return self.head(x)


def net_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.mse_loss(model(batch["x"]), batch["y"])


def net_batch(n: int = 6) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {"x": torch.randn(n, 4, generator=generator), "y": torch.randn(n, 2, generator=generator)}


def test_residuals_around_blocks_and_buffers():
    model, whole = Net(), Net()
    whole.load_state_dict(model.state_dict())
    expected = net_loss(whole, net_batch())
    parts, flow = cut(model, net_loss, net_batch(), 3)
    assert torch.equal(loss_of_stages(parts, flow, net_loss, net_batch()), expected)
    buffers = {name: buffer for part in parts for name, buffer in part.named_buffers()}
    for name, buffer in whole.named_buffers():
        if name != "steps":  # these stages share it, stages on different ranks do not
            assert torch.equal(buffers[name], buffer), name


def twice(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return net_loss(model, batch) + net_loss(model, batch)


def decayed(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return net_loss(model, batch) + sum(p.square().sum() for p in model.parameters())


REFUSED = {
    "skip connection over stages": ("skip", net_loss, 4, UnsupportedError, "skip connection"),
    "control flow by activations": ("value", net_loss, 4, UnsupportedError, "reads values"),
    "random numbers between blocks": ("draw", net_loss, 4, UnsupportedError, "random numbers"),
    "two calls": ("", twice, 4, UnsupportedError, "calls the model 2 times"),
    "a loss of the parameters": ("", decayed, 4, UnsupportedError, "is used by another"),
    "more stages than blocks": ("", net_loss, 5, InputError, "4 repeated blocks"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str):
    how, loss, stages, error, words = REFUSED[case]
    with pytest.raises(error, match=words) as raised:
        cut(Net(how), loss, net_batch(), stages)
    assert isinstance(raised.value, GpuwiseError)
    assert raised.value.ways_out


def test_a_model_without_blocks():
    with pytest.raises(InputError, match="no repeated blocks"):
        cut(nn.Linear(4, 2), net_loss, net_batch(), 2)


def test_stages_are_balanced():
    assert balanced([1, 1, 1, 1], 2) == (0, 2)
    assert balanced([1, 1, 1, 1, 3], 2) == (0, 3)  # the head counts with the last block
    assert balanced([1] * 7, 3) in {(0, 3, 5), (0, 2, 5), (0, 2, 4)}
    assert balanced([5, 1, 1, 1, 1, 1], 3)[1] == 1
