"""Tables with sparse gradients, complex parameters and lazy layers, beside a plain loop where they train."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gpuwise
from gpuwise.errors import InputError, JobError
from gpuwise.job import Job

TOKENS = torch.randint(0, 50, (12, 9), generator=torch.Generator().manual_seed(1))


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.EmbeddingBag(50, 8, mode="sum", sparse=True), nn.Linear(8, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.table(tokens))  # type: ignore[no-any-return]


class Spectral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.randn(5, dtype=torch.cfloat)), nn.Linear(8, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(tokens[:, :8].float() / 50) * self.weight
        return self.head(torch.fft.irfft(spectrum, n=8))  # type: ignore[no-any-return]


def _made(kind: type[nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return kind()


def _loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch["tokens"]), batch["tokens"][:, 0] % 4)


def _job(kind: type[nn.Module], optimizer: str) -> Job:
    def rows() -> object:
        return ({"tokens": row} for row in TOKENS)

    return Job(
        model=lambda: _made(kind),
        batch=lambda n: {"tokens": torch.zeros(n, 9, dtype=torch.long)},
        loss=_loss,
        optimizer=optimizer,
        learning_rate=0.1,
        data=rows,  # type: ignore[arg-type]
        samples=len(TOKENS),
    )


def _trained(job: Job, **settings: object) -> tuple[list[float], dict[str, Tensor]]:
    trainer = gpuwise.Trainer(
        job,
        steps=3,
        micro_batch=4,
        precision="fp32",
        compile=False,
        run=None,
        progress="silent",
        **settings,  # type: ignore[arg-type]
    )
    losses = [step.loss for step in trainer]
    return losses, dict(trainer.model.state_dict())


def _plain(kind: type[nn.Module], optimizer: str) -> tuple[list[float], dict[str, Tensor]]:
    model = _made(kind)
    update = (
        torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)
        if optimizer == "adamw"
        else torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9 if optimizer == "momentum" else 0, foreach=False)
    )
    losses = []
    for rows in TOKENS.split(4):
        update.zero_grad()
        loss = _loss(model, {"tokens": rows})
        loss.backward()
        update.step()
        losses.append(loss.item())
    return losses, dict(model.state_dict())


@pytest.mark.parametrize(("kind", "optimizer"), [(Bag, "sgd"), (Bag, "momentum"), (Spectral, "adamw"), (Spectral, "momentum")])
@pytest.mark.filterwarnings("ignore:no forecast to compare with")
def test_trains_like_a_plain_loop(kind: type[nn.Module], optimizer: str) -> None:
    losses, weights = _trained(_job(kind, optimizer))
    plain_losses, plain_weights = _plain(kind, optimizer)
    assert losses == pytest.approx(plain_losses, rel=1e-6)
    assert weights.keys() == plain_weights.keys()
    for name, value in plain_weights.items():
        torch.testing.assert_close(weights[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:no forecast to compare with")
def test_sparse_gradients_refuse_other_updates() -> None:
    with pytest.raises(InputError, match="adamw does not take their gradients"):
        _trained(_job(Bag, "adamw"))
    with pytest.raises(InputError, match="fused SGD does not take"):
        _trained(_job(Bag, "sgd"), optimizer_kernels="fused")


def test_lazy_layers_name_a_way_out() -> None:
    job = _job(lambda: nn.Sequential(nn.LazyLinear(4)), "sgd")  # type: ignore[arg-type]
    with pytest.raises(JobError, match=r"lazy layers.*0\.weight") as refused:
        gpuwise.forecast(job, on="rtx-4090", micro_batch=4)
    assert "example batch" in refused.value.ways_out[0]


def test_a_job_object_makes_its_own_sizes() -> None:
    with pytest.raises(InputError, match="makes batches of seq_len None, not 8"):
        gpuwise.Trainer(_job(Spectral, "sgd"), steps=1, run=None, seq_len=8)


@pytest.mark.parametrize(("name", "value"), [("keep", 5), ("save_every", "1min"), ("interruptions", 3)])
def test_checkpoints_need_a_folder(name: str, value: object) -> None:
    flag = f"--{name.replace('_', '-')}"
    with pytest.raises(InputError, match=f"{flag} is about checkpoints"):
        gpuwise.Trainer(_job(Spectral, "sgd"), steps=1, run=None, micro_batch=4, **{name: value})  # type: ignore[arg-type]
