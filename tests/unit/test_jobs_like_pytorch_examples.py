"""Jobs in the manner of the examples of PyTorch (github.com/pytorch/examples): each is forecast on a GPU and trained here.

The models are small ones of our own, of the same kind: what they show is that such training can be said as a `Job`.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from tests.training_samples import train
from torch import Tensor, nn
from torch.utils.data import DataLoader

import gpuwise
from gpuwise import Job
from gpuwise.strategy import Strategy

SIZE, STEPS = 4, 3


def images(n: int) -> dict[str, Tensor]:
    return {"image": torch.rand(n, 1, 8, 8), "label": torch.randint(0, 10, (n,))}


def classify(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.nll_loss(F.log_softmax(model(batch["image"]), 1), batch["label"])


def convnet() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(), nn.Linear(72, 10))


def mnist() -> Job:
    return Job(
        model=convnet,
        batch=images,
        loss=classify,
        schedule=lambda step, steps: 0.7**step,
        optimizer=lambda parameters: torch.optim.Adadelta(parameters, lr=1.0),
    )


def mnist_hogwild() -> Job:
    """One of its processes."""
    return Job(model=convnet, batch=images, loss=classify, optimizer="momentum", learning_rate=0.01)


class RowsAsTime(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 10)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.lstm(image[:, 0])[0][:, -1])


def mnist_rnn() -> Job:
    return Job(model=RowsAsTime, batch=images, loss=classify)


class ForwardForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(74, 32), nn.Linear(32, 32)])


def forward_forward_step(context, batch):
    """Each layer by itself: high activity on images with their own label, low with another one."""

    def with_label(label: Tensor) -> Tensor:
        return torch.cat([batch["image"].flatten(1), F.one_hot(label, 10).float()], 1)

    good, bad = with_label(batch["label"]), with_label((batch["label"] + 1) % 10)
    results = {}
    for number, layer in enumerate(context.model.layers):
        good, bad = (F.relu(layer(F.normalize(x.detach()))) for x in (good, bad))
        goodness = torch.cat([2 - good.pow(2).mean(1), bad.pow(2).mean(1) - 2])
        context.zero_grad(f"layer{number}")
        results[f"layer{number}"] = F.softplus(goodness).mean()
        context.backward(results[f"layer{number}"])
        context.update(f"layer{number}")
    return {"loss": sum(results.values()), **results}


def mnist_forward_forward() -> Job:
    optimizers = {f"layer{i}": lambda model, i=i: torch.optim.Adam(model.layers[i].parameters(), lr=0.03) for i in range(2)}
    return Job(model=ForwardForward, batch=images, step=forward_forward_step, optimizer=optimizers)


def regression() -> Job:
    """A polynomial of degree four."""

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        powers = torch.cat([batch["x"] ** i for i in range(1, 5)], 1)
        return F.smooth_l1_loss(model(powers), batch["y"])

    return Job(
        model=lambda: nn.Linear(4, 1),
        loss=loss,
        optimizer="sgd",
        learning_rate=0.1,
        batch=lambda n: {"x": torch.randn(n, 1), "y": torch.randn(n, 1)},
    )


def episode(n: int) -> dict[str, Tensor]:
    """States, what was done in them and the return that followed; to be played by a data set."""
    return {"state": torch.randn(n, 4), "action": torch.randint(0, 2, (n,)), "return": torch.randn(n)}


def reinforce_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    policy = torch.distributions.Categorical(logits=model(batch["state"]))
    returns = (batch["return"] - batch["return"].mean()) / (batch["return"].std() + 1e-6)
    return -(policy.log_prob(batch["action"]) * returns).sum()


def reinforce() -> Job:
    return Job(
        model=lambda: nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.6), nn.ReLU(), nn.Linear(32, 2)),
        batch=episode,
        loss=reinforce_loss,
        optimizer="adam",
        learning_rate=1e-2,
    )


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.actor, self.critic = nn.Linear(4, 32), nn.Linear(32, 2), nn.Linear(32, 1)


def actor_critic_step(context, batch):
    """One backward of two losses, then two updates on time scales of their own."""
    model = context.model
    hidden = F.relu(model.body(batch["state"]))
    value = model.critic(hidden).squeeze(1)
    advantage = batch["return"] - value.detach()
    policy = torch.distributions.Categorical(logits=model.actor(hidden))
    losses = {
        "actor": -(policy.log_prob(batch["action"]) * advantage).mean(),
        "critic": F.smooth_l1_loss(value, batch["return"]),
    }
    total = losses["actor"] + losses["critic"]
    context.zero_grad()
    context.backward(total)
    context.update("actor")
    context.update("critic")
    return {"loss": total, **losses}


def actor_critic() -> Job:
    return Job(
        model=ActorCritic,
        batch=episode,
        step=actor_critic_step,
        clip_norm=1.0,
        optimizer={
            "actor": lambda m: torch.optim.Adam([*m.body.parameters(), *m.actor.parameters()], lr=1e-3),
            "critic": lambda m: torch.optim.Adam(m.critic.parameters(), lr=1e-2),
        },
    )


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tower, self.head = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Flatten()), nn.Linear(576, 1)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.sigmoid(self.head(torch.cat([self.tower(a), self.tower(b)], 1))).squeeze(1)


def siamese_network() -> Job:
    """With a loss that autocast refuses."""
    return Job(
        model=Siamese,
        batch=lambda n: (torch.rand(n, 1, 8, 8), torch.rand(n, 1, 8, 8), torch.rand(n).round()),
        loss=lambda model, batch: F.binary_cross_entropy(model(batch[0], batch[1]), batch[2]),
    )


class Inference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.encoder = nn.Embedding(50, 16), nn.LSTM(16, 16, bidirectional=True, batch_first=True)
        self.head = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))

    def forward(self, premise: Tensor, hypothesis: Tensor) -> Tensor:
        return self.head(torch.cat([self.encoder(self.words(x))[0][:, -1] for x in (premise, hypothesis)], 1))


def snli() -> Job:
    return Job(
        model=Inference,
        batch=lambda n: {
            "premise": torch.randint(0, 50, (n, 7)),
            "hypothesis": torch.randint(0, 50, (n, 5)),
            "label": torch.randint(0, 3, (n,)),
        },
        loss=lambda model, b: F.cross_entropy(model(b["premise"], b["hypothesis"]), b["label"]),
    )


def super_resolution() -> Job:
    return Job(
        model=lambda: nn.Sequential(
            nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 4, 3, padding=1), nn.PixelShuffle(2)
        ),
        batch=lambda n: {"small": torch.rand(n, 1, 8, 8), "large": torch.rand(n, 1, 16, 16)},
        loss=lambda model, b: F.mse_loss(model(b["small"]), b["large"]),
        optimizer="adam",
    )


class Waves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.LSTMCell(1, 12), nn.LSTMCell(12, 12), nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        one, two, result = None, None, []
        for value in x.split(1, dim=1):
            one = self.first(value, one)
            two = self.second(one[0], two)
            result.append(self.head(two[0]))
        return torch.cat(result, 1)


def time_sequence_prediction() -> Job:
    """In double precision, by LBFGS."""

    def waves(n: int) -> Tensor:
        return torch.sin(torch.arange(9) / 3 + torch.arange(n)[:, None]).double()

    return Job(
        model=lambda: Waves().double(),
        batch=waves,
        loss=lambda model, x: F.mse_loss(model(x[:, :-1]), x[:, 1:]),
        optimizer=lambda parameters: torch.optim.LBFGS(parameters, lr=0.8, max_iter=4, history_size=5),
    )


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.mean, self.log_variance = nn.Linear(64, 32), nn.Linear(32, 4), nn.Linear(32, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 64), nn.Sigmoid())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = F.relu(self.encoder(x))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        return self.decoder(mean + torch.randn_like(mean) * (0.5 * log_variance).exp()), mean, log_variance


def vae_loss(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    image = batch["image"].flatten(1)
    again, mean, log_variance = model(image)
    parts = {
        "reconstruction": F.binary_cross_entropy(again, image, reduction="sum"),
        "kl": -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(),
    }
    return {"loss": parts["reconstruction"] + parts["kl"], **parts}


def vae() -> Job:
    return Job(model=Vae, batch=images, loss=vae_loss, optimizer="adam")


class Dcgan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.ConvTranspose2d(6, 8, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.Sigmoid()
        )
        self.discriminator = nn.Sequential(
            nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 1, 4), nn.Flatten(), nn.Sigmoid()
        )


def dcgan_step(context, batch):
    """Two backwards before the update of the discriminator; a loss that autocast refuses."""
    model, real = context.model, batch["image"]
    ones, zeros = real.new_ones(len(real), 1), real.new_zeros(len(real), 1)
    fake = model.generator(torch.randn(len(real), 6, 1, 1, device=real.device))
    context.zero_grad("discriminator")
    of_real = F.binary_cross_entropy(model.discriminator(real), ones)
    context.backward(of_real)
    of_fake = F.binary_cross_entropy(model.discriminator(fake.detach()), zeros)
    context.backward(of_fake)
    context.update("discriminator")
    context.zero_grad("generator")
    generator = F.binary_cross_entropy(model.discriminator(fake), ones)
    context.backward(generator)
    context.update("generator")
    return {"loss": of_real + of_fake + generator, "discriminator": of_real + of_fake, "generator": generator}


def dcgan() -> Job:
    return Job(
        model=Dcgan,
        batch=images,
        step=dcgan_step,
        optimizer={
            name: lambda model, name=name: torch.optim.Adam(getattr(model, name).parameters(), lr=2e-4, betas=(0.5, 0.999))
            for name in ("discriminator", "generator")
        },
    )


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.conv(x))


def imagenet() -> Job:
    return Job(
        model=lambda: nn.Sequential(
            nn.Conv2d(3, 8, 7, 2, 3), Residual(), Residual(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
        ),
        batch=lambda n: (torch.rand(n, 3, 32, 32), torch.randint(0, 10, (n,))),
        sample_unit="image",
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        schedule=lambda step, _: 0.1 ** (step // 30),
        optimizer=lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=1e-4),
    )


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(40, 16), nn.Embedding(40, 16)
        self.transformer = nn.Transformer(16, 2, 1, 1, 32, batch_first=True)
        self.head = nn.Linear(16, 40)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        return self.head(
            self.transformer(
                self.source(source),
                self.target(target),
                tgt_mask=mask,
                src_key_padding_mask=source == 0,
                memory_key_padding_mask=source == 0,
            )
        )


def language_translation() -> Job:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        answer = model(batch["source"], batch["target"][:, :-1])
        return F.cross_entropy(answer.flatten(0, 1), batch["target"][:, 1:].flatten(), ignore_index=0)

    return Job(
        model=Translator,
        loss=loss,
        sample_unit="token",
        tokens_per_sample=7,
        optimizer="adam",
        batch=lambda n: {"source": torch.randint(1, 40, (n, 6)), "target": torch.randint(1, 40, (n, 8))},
    )


class VisionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.position = nn.Conv2d(1, 16, 2, 2), nn.Parameter(torch.zeros(1, 16, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(16, 10)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.layers(self.patches(image).flatten(2).transpose(1, 2) + self.position).mean(1))


def vision_transformer() -> Job:
    return Job(model=VisionTransformer, batch=images, loss=classify)


class WordModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm, self.head = nn.Embedding(30, 16), nn.LSTM(16, 16, 2, dropout=0.2), nn.Linear(16, 30)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.words(tokens))[0])


def word_language_model() -> Job:
    """Time comes first, samples second, as recurrent layers have it."""

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        tokens = batch["tokens"]
        return F.cross_entropy(model(tokens[:-1]).flatten(0, 1), tokens[1:].flatten())

    return Job(
        model=WordModel,
        batch=lambda n: {"tokens": torch.randint(0, 30, (9, n))},
        loss=loss,
        clip_norm=0.25,
        optimizer="sgd",
        learning_rate=20.0,
        samples_in=lambda batch: batch["tokens"].shape[1],
    )


class Style(nn.Module):
    """A network that is trained, and a frozen one that judges it."""

    def __init__(self) -> None:
        super().__init__()
        self.paint = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.InstanceNorm2d(8, affine=True), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1)
        )
        self.judge = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()).requires_grad_(False)


def style_loss(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
    def gram(features: Tensor) -> Tensor:
        flat = features.flatten(2)
        return flat @ flat.transpose(1, 2) / flat[0].numel()

    before, after = model.judge(batch), model.judge(model.paint(batch))
    parts = {"content": F.mse_loss(after, before), "style": F.mse_loss(gram(after), gram(before) * 0.5)}
    return {"loss": parts["content"] + 1e3 * parts["style"], **parts}


def fast_neural_style() -> Job:
    return Job(model=Style, batch=lambda n: torch.rand(n, 3, 16, 16), loss=style_loss, optimizer="adam")


NODES, EDGES = 12, 30


def graph(seed: int = 0) -> dict[str, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randn(NODES, 8, generator=draws),
        "edges": torch.randint(0, NODES, (2, EDGES), generator=draws),
        "label": torch.randint(0, 3, (NODES,), generator=draws),
    }


def joined(graphs: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """One graph without edges between its parts."""
    return {
        "x": torch.cat([g["x"] for g in graphs]),
        "label": torch.cat([g["label"] for g in graphs]),
        "edges": torch.cat([g["edges"] + i * NODES for i, g in enumerate(graphs)], 1),
    }


class GraphConvolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        for layer in (self.first, self.second):
            messages = layer(x)[edges[0]]
            x = F.relu(layer(x).index_add(0, edges[1], messages))
        return x


class GraphAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.values, self.scores, self.head = nn.Linear(8, 16), nn.Linear(32, 1), nn.Linear(16, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        values = self.values(x)
        score = F.leaky_relu(self.scores(torch.cat([values[edges[0]], values[edges[1]]], 1)), 0.2).float().exp()
        total = score.new_full((len(x), 1), 1e-6).index_add(0, edges[1], score)
        weighted = values[edges[0]].float() * score / total[edges[1]]
        return self.head(F.elu(torch.zeros_like(values, dtype=torch.float32).index_add(0, edges[1], weighted)))


def of_graphs(model: type[nn.Module]) -> Job:
    return Job(
        model=model,
        batch=lambda n: joined([graph(i) for i in range(n)]),
        samples_in=lambda b: b["x"].shape[0] // NODES,
        loss=lambda m, b: F.cross_entropy(m(b["x"], b["edges"]), b["label"]),
        samples=20,
        data=lambda: DataLoader([graph(i) for i in range(20)], collate_fn=joined),
    )


def gcn() -> Job:
    return of_graphs(GraphConvolution)


def gat() -> Job:
    return of_graphs(GraphAttention)


def fx() -> Job:
    """A model that was rewritten."""

    def rewritten() -> nn.Module:
        traced = torch.fx.symbolic_trace(convnet())
        for node in traced.graph.nodes:
            if node.op == "call_module" and node.target == "1":
                node.op, node.target = "call_function", F.gelu
        traced.recompile()
        return traced

    return Job(model=rewritten, batch=images, loss=classify)


JOBS = [
    mnist,
    mnist_hogwild,
    mnist_rnn,
    mnist_forward_forward,
    regression,
    reinforce,
    actor_critic,
    siamese_network,
    snli,
    super_resolution,
    time_sequence_prediction,
    vae,
    dcgan,
    imagenet,
    language_translation,
    vision_transformer,
    word_language_model,
    fast_neural_style,
    gcn,
    gat,
    fx,
]
REFUSED_BY_AUTOCAST = {siamese_network, vae, dcgan}


SLOW = (time_sequence_prediction, language_translation)


@pytest.mark.parametrize(
    "make",
    [pytest.param(make, marks=pytest.mark.slow) if make in SLOW else make for make in JOBS],
    ids=lambda make: make.__name__,
)
def test_it_is_forecast_on_a_gpu_and_trained_here(make):
    job = make()
    forecast = gpuwise.forecast(job, on="rtx-4090", micro_batch=SIZE)
    assert forecast.memory.fits
    assert 0 < forecast.step_time_s.low < forecast.step_time_s.value < 1
    assert forecast.flops_per_step > 0
    assert (forecast.strategy.precision == "tf32") == (make in REFUSED_BY_AUTOCAST)
    assert any("does not run in amp-bf16" in line for line in forecast.assumptions) == (make in REFUSED_BY_AUTOCAST)
    result = train(job, Strategy(micro_batch=SIZE), steps=STEPS)
    assert result.steps == STEPS
    assert math.isfinite(result.last_loss)
    assert not any("no gradient reaches" in note for note in result.notes)
