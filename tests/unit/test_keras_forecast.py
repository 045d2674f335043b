"""Forecasts of Keras models: memory against the CPU's allocator, operations against plain PyTorch, any device."""

from __future__ import annotations

import gc
import warnings

import pytest
import torch
from benchmarks.memory_on_cpu import compare
from benchmarks.support.memory_cases import Case
from torch import nn

import gpuwise
from gpuwise.job import Job
from gpuwise.job.keras.backend import choose_backend
from gpuwise.strategy import Mesh, Strategy
from gpuwise.tracing import record
from gpuwise.tracing.kernels import attention

choose_backend()
keras = pytest.importorskip("keras", reason='needs Keras: pip install -c constraints.txt ".[keras]"')
if keras.backend.backend() != "torch":
    pytest.skip("Keras runs on another backend here", allow_module_level=True)

import keras_samples as samples  # noqa: E402

from gpuwise.job.keras.job import keras_job  # noqa: E402


@pytest.mark.parametrize("device", ["h100-sxm", "rtx-4090", "cpu"])
@pytest.mark.parametrize("kind", ["cnn", "transformer"])
def test_any_device(kind: str, device: str) -> None:
    forecast = gpuwise.forecast(keras_job(getattr(samples, kind), name=kind), on=device, micro_batch=4)
    assert forecast.step_time_s.value > 0
    assert forecast.memory.fits is not False


@pytest.mark.parametrize(
    ("kind", "error"), [("mlp", 0.001), pytest.param("transformer", 0.005, marks=pytest.mark.slow), ("cnn", 0.001)]
)
def test_the_predicted_peak_is_the_real_one(kind: str, error: float) -> None:
    """Keras's loss leaves small tensors to the collector of cycles, which would come by chance."""
    before = torch.get_float32_matmul_precision()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            row = compare(Case(kind, keras_job(getattr(samples, kind), name=kind), Strategy(micro_batch=8)))
    finally:
        gc.enable()
        torch.set_float32_matmul_precision(before)
    assert abs(row.error) <= error, row


def test_operations_and_parameters_are_those_of_plain_pytorch() -> None:
    def plain() -> nn.Module:
        convolution = nn.Conv2d(3, 8, 3)
        return nn.Sequential(convolution, nn.ReLU(), nn.BatchNorm2d(8), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(200, 3))

    def batch(n: int) -> dict[str, torch.Tensor]:
        return {"x": torch.rand(n, 3, 12, 12), "y": torch.zeros(n, dtype=torch.long)}

    pytorch = Job(plain, batch, lambda model, batch: nn.functional.cross_entropy(model(batch["x"]), batch["y"]))
    ours, theirs = (record(job, Strategy(micro_batch=4)) for job in (keras_job(samples.cnn, name="cnn"), pytorch))
    assert ours.flops() == theirs.flops() > 0
    assert ours.header.parameters == theirs.header.parameters


def test_seeded_dropout_reads_its_seed_on_the_device() -> None:
    assumptions = gpuwise.forecast(keras_job(samples.cnn, name="cnn"), on="h100-sxm", micro_batch=4).assumptions
    assert any("keras/src/backend/torch/random.py" in each for each in assumptions)


def test_flash_attention_is_chosen_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def model() -> keras.Model:
        tokens = keras.Input((64, 32))
        model = keras.Model(tokens, keras.layers.MultiHeadAttention(2, 16)(tokens, tokens))
        model.compile("sgd", "mse")
        return model

    flash, alone = attention._flash, []

    def seen(*arguments: object) -> torch.Tensor:
        alone.append(not torch.backends.cuda.mem_efficient_sdp_enabled())  # Keras has switched the others off
        return flash(*arguments)

    monkeypatch.setattr(attention, "_flash", seen)
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        record(keras_job(model, name="attention"), Strategy("amp-bf16", micro_batch=2))
    finally:
        keras.config.set_dtype_policy("float32")
    assert alone
    assert all(alone)


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        (Strategy(mesh=Mesh(tp=2)), "PyTorch's own layers"),
        (Strategy("bf16"), "dtype policy float32"),
        (Strategy(recompute="full"), "moving_mean"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(strategy: Strategy, reason: str) -> None:
    def blocks() -> keras.Model:
        model = keras.Sequential([keras.Input((8,))])
        for _ in range(2):
            model.add(keras.Sequential([keras.Input((8,)), keras.layers.Dense(8), keras.layers.BatchNormalization()]))
        model.compile("sgd", "mse")
        return model

    with pytest.raises(gpuwise.GpuwiseError, match=reason):
        record(keras_job(blocks, name="blocks"), strategy.but(micro_batch=4))


@pytest.mark.slow
def test_replicas_and_shards_are_forecast() -> None:
    job = keras_job(samples.transformer, name="transformer")
    for mesh in ("dp=2", "dp_shard=2"):
        assert gpuwise.forecast(job, on="h100-sxm:2", mesh=mesh, micro_batch=4, precision="fp32").step_time_s.value > 0
