"""Reference models: published parameter counts on `meta`, correct computing and learning at small sizes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from gpuwise.job import checked_batch, repeated_blocks  # noqa: E402
from gpuwise.job.job import meta_model  # noqa: E402
from gpuwise.job.models.alexnet import AlexNet, AlexNetConfig  # noqa: E402
from gpuwise.job.models.bert import Bert, BertConfig  # noqa: E402
from gpuwise.job.models.dlrm import Dlrm, DlrmConfig, click_batch, click_loss  # noqa: E402
from gpuwise.job.models.gpt2 import Gpt2, Gpt2Config  # noqa: E402
from gpuwise.job.models.language import (  # noqa: E402
    masked_word_batch,
    next_token_batch,
    token_loss,
    translation_batch,
)
from gpuwise.job.models.llama import Llama, LlamaConfig, rotary_table, rotate  # noqa: E402
from gpuwise.job.models.mixtral import Mixtral, MixtralConfig, MixtureOfExperts  # noqa: E402
from gpuwise.job.models.mlp import Mlp, MlpConfig, class_loss, image_batch, table_batch  # noqa: E402
from gpuwise.job.models.resnet import ResNet, ResNetConfig  # noqa: E402
from gpuwise.job.models.t5 import T5, T5Config, position_buckets  # noqa: E402
from gpuwise.job.models.unet import Unet, UnetConfig, diffusion_batch, diffusion_loss  # noqa: E402
from gpuwise.job.models.vit import Vit, VitConfig  # noqa: E402
from gpuwise.job.presets import preset_job  # noqa: E402
from gpuwise.trace.presets.table import PRESETS  # noqa: E402

BLOCKS = {
    "tabular-mlp": 0,
    "alexnet": 0,
    "resnet50": 16,
    "vit-b16": 12,
    "bert-base": 12,
    "bert-large": 24,
    "t5-base": 24,
    "gpt2": 12,
    "gpt2-medium": 24,
    "gpt2-large": 36,
    "gpt2-xl": 48,
    "llama2-7b": 32,
    "llama2-13b": 40,
    "llama3-8b": 32,
    "llama3-70b": 80,
    "llama3-405b": 126,
    "mixtral-8x7b": 32,
    "sd15-unet": 22 + 15,
    "dlrm": 0,
}

WIDTHS = {"width": 32, "layers": 2, "heads": 4}
SMALL = {
    "mlp": (lambda: Mlp(MlpConfig()), lambda n: table_batch(n, features=20, classes=2), class_loss),
    "alexnet": (
        lambda: AlexNet(AlexNetConfig(classes=10, channels=(8, 8, 8, 8, 8), hidden=64, dropout=0.0)),
        lambda n: image_batch(n, image_size=63, classes=10),
        class_loss,
    ),
    "resnet": (
        lambda: ResNet(ResNetConfig(depths=(1, 2), width=8, classes=10)),
        lambda n: image_batch(n, image_size=64, classes=10),
        class_loss,
    ),
    "vit": (
        lambda: Vit(VitConfig(image_size=32, patch=8, hidden=64, classes=10, **WIDTHS)),
        lambda n: image_batch(n, image_size=32, classes=10),
        class_loss,
    ),
    "bert": (
        lambda: Bert(BertConfig(vocabulary=50, positions=16, hidden=64, dropout=0.0, **WIDTHS)),
        lambda n: masked_word_batch(n, vocabulary=50, seq_len=16),
        token_loss,
    ),
    "t5": (
        lambda: T5(T5Config(vocabulary=50, width=32, layers=2, heads=4, head_dim=8, hidden=64, dropout=0.0)),
        lambda n: translation_batch(n, vocabulary=50, seq_len=12),
        token_loss,
    ),
    "gpt2": (
        lambda: Gpt2(Gpt2Config(vocabulary=50, positions=16, dropout=0.0, **WIDTHS)),
        lambda n: next_token_batch(n, vocabulary=50, seq_len=16),
        token_loss,
    ),
    "llama": (
        lambda: Llama(LlamaConfig(vocabulary=50, kv_heads=2, hidden=64, **WIDTHS)),
        lambda n: next_token_batch(n, vocabulary=50, seq_len=16),
        token_loss,
    ),
    "mixtral": (
        lambda: Mixtral(MixtralConfig(vocabulary=50, kv_heads=2, hidden=64, **WIDTHS)),
        lambda n: next_token_batch(n, vocabulary=50, seq_len=16),
        token_loss,
    ),
    "unet": (
        lambda: Unet(UnetConfig(levels=(16, 32), blocks_per_level=1, heads=2, context=24, groups=8)),
        lambda n: diffusion_batch(n, latent_size=8, context=24, words=5),
        diffusion_loss,
    ),
    "dlrm": (
        lambda: Dlrm(DlrmConfig(tables=(10, 20, 30), width=8, bottom=(16, 8), top=(16, 1))),
        lambda n: click_batch(n, dense=13, tables=(10, 20, 30)),
        click_loss,
    ),
}


@pytest.mark.parametrize("name", PRESETS)
def test_parameters_equal_the_published_count(name):
    model = meta_model(preset_job(name))
    assert all(p.device.type == "meta" for p in model.parameters())
    assert sum(p.numel() for p in model.parameters()) == PRESETS[name].parameters
    assert len(repeated_blocks(model)) == BLOCKS[name]


def test_bert_is_served_without_its_masked_word_head():
    job, (n, seq, width, hidden, layers) = preset_job("bert-base"), (2, 128, 768, 3072, 12)
    assert job.forward is not None
    model, tokens = meta_model(job).eval(), torch.zeros(n, seq, dtype=torch.int64, device="meta")
    with FlopCounterMode(display=False) as counter:
        answer = job.forward(model, {"tokens": tokens})
    assert answer.shape == (n, seq, width)
    products, attention = 2 * n * seq * (4 * width**2 + 2 * width * hidden), 4 * n * seq**2 * width
    assert counter.get_total_flops() == layers * (products + attention)


def test_every_family_is_trained_here():
    assert {info.architecture for info in PRESETS.values()} == set(SMALL)


@pytest.mark.parametrize("family", SMALL)
def test_a_small_one_learns_a_batch_by_heart(family):
    make, batch, loss = SMALL[family]
    torch.manual_seed(0)
    model, example = make(), batch(8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    losses = []
    for _ in range(25):
        value = loss(model, example)
        value.backward()
        assert all(p.grad is not None for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(value.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("family", SMALL)
def test_forward_and_backward_run_on_meta(family):
    make, batch, loss = SMALL[family]
    with torch.device("meta"):
        model = make()
    example = {key: value.to("meta") for key, value in batch(4).items()}
    value = loss(model, example)
    value.backward()
    assert value.shape == ()
    assert all(p.grad is not None and p.grad.is_meta for p in model.parameters())


@pytest.mark.parametrize("name", ["bert-base", "gpt2", "t5-base"])
def test_initial_loss_is_near_that_of_a_uniform_guess(name):
    family = PRESETS[name].architecture
    torch.manual_seed(0)
    make, batch, loss = SMALL[family]
    value = loss(make(), batch(32)).item()
    assert value == pytest.approx(torch.log(torch.tensor(50.0)).item(), rel=0.25)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_decoders_do_not_look_ahead(family):
    torch.manual_seed(0)
    model = SMALL[family][0]().eval()
    tokens = torch.randint(0, 50, (1, 16))
    changed = tokens.clone()
    changed[0, 10:] = (changed[0, 10:] + 1) % 50
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10:], after[:, 10:])


def test_t5_decoder_does_not_look_ahead_and_reads_the_encoder():
    torch.manual_seed(0)
    model = SMALL["t5"][0]().eval()
    tokens, targets = torch.randint(1, 50, (1, 12)), torch.randint(1, 50, (1, 12))
    changed = targets.clone()
    changed[0, 6:] = (changed[0, 6:] + 1) % 50
    with torch.no_grad():
        before = model(tokens, targets)
        torch.testing.assert_close(before[:, :6], model(tokens, changed)[:, :6])
        assert not torch.allclose(before[:, :6], model((tokens + 1) % 50, targets)[:, :6])


def test_t5_buckets_are_those_of_the_paper():
    both = position_buckets(200, both_ways=True, config=T5Config(), device=torch.device("cpu"))
    back = position_buckets(200, both_ways=False, config=T5Config(), device=torch.device("cpu"))
    assert both.min() == 0
    assert both.max() == 31
    assert both[50, 47] == 3  # three back: exact
    assert both[50, 53] == 16 + 3  # three ahead: the other half
    assert back[199, 0] == 31  # beyond max_distance
    assert (back.triu(1) == 0).all()


def test_rotary_scores_depend_on_distance_only():
    torch.manual_seed(0)
    table = rotary_table(32, 16, theta=10_000.0, device=torch.device("cpu"))
    q = rotate(torch.randn(16).expand(1, 1, 32, 16), table)[0, 0]
    k = rotate(torch.randn(16).expand(1, 1, 32, 16), table)[0, 0]
    scores = q @ k.T
    torch.testing.assert_close(scores[5, 2], scores[25, 22])
    assert abs(scores[5, 2] - scores[5, 4]) > 1e-3


def test_mixture_equals_the_weighted_sum_of_the_chosen_experts():
    torch.manual_seed(0)
    config = MixtralConfig(width=16, hidden=32, experts=4, capacity_factor=4.0)  # room for every token
    mixture = MixtureOfExperts(config)
    x = torch.randn(2, 6, 16)
    with torch.no_grad():
        got = mixture(x)
        weight, chosen = mixture.router(x).softmax(-1).topk(2, dim=-1)
        weight = weight / weight.sum(-1, keepdim=True)
        everyone = torch.stack([expert(x) for expert in mixture.experts], dim=-2)
        wanted = (everyone.gather(-2, chosen[..., None].expand(-1, -1, -1, 16)) * weight[..., None]).sum(-2)
    torch.testing.assert_close(got, wanted)


def test_a_full_expert_lets_tokens_pass():
    torch.manual_seed(0)
    config = MixtralConfig(width=16, hidden=32, experts=4, experts_per_token=1, capacity_factor=1.0)
    mixture = MixtureOfExperts(config)
    with torch.no_grad():
        mixture.router.weight.zero_()  # every token chooses one and the same expert
        got = mixture(torch.randn(1, 8, 16))
    assert (got != 0).any(-1).sum() == 2  # room for 8 tokens x 1 / 4


def test_bert_hides_about_15_percent():
    torch.manual_seed(0)
    labels = masked_word_batch(64, vocabulary=100, seq_len=64)["labels"]
    assert 0.12 < (labels != -100).float().mean() < 0.18


@pytest.mark.parametrize("name", ["tabular-mlp", "resnet50", "bert-base", "t5-base", "llama3-8b", "sd15-unet", "dlrm"])
def test_example_batches_have_n_samples(name):
    checked_batch(preset_job(name), 3)
