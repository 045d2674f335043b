"""A Keras model trains as its own `fit` does, and resumes bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import gpuwise
from gpuwise.errors import PrecisionError
from gpuwise.job.keras.backend import choose_backend

choose_backend()
keras = pytest.importorskip("keras", reason='needs Keras: pip install -c constraints.txt ".[keras]"')
if keras.backend.backend() != "torch":
    pytest.skip("Keras runs on another backend here", allow_module_level=True)

import keras_samples as samples  # noqa: E402

from gpuwise.job.keras.job import keras_job  # noqa: E402

optimizers, schedules = keras.optimizers, keras.optimizers.schedules
CASES = {
    "mlp": lambda: optimizers.RMSprop(1e-2),
    "cnn": lambda: optimizers.Adam(1e-3, global_clipnorm=1.0),
    "transformer": lambda: optimizers.AdamW(
        schedules.CosineDecay(1e-2, 20, warmup_target=2e-2, warmup_steps=3), weight_decay=0.1
    ),
}
STEPS = 5


def train(job: gpuwise.Job, run: Path, *, until: int = STEPS, **settings: object) -> tuple[list[float], gpuwise.Trainer]:
    """The losses of a run, or of its first steps."""
    keywords = {"precision": "fp32", "micro_batch": samples.MICRO_BATCH, "steps": STEPS, **settings}
    trainer, results = gpuwise.Trainer(job, run=run, **keywords), []
    for step in trainer:
        results.append(step.loss)
        if step.step == until:
            break
    return results, trainer


@pytest.mark.parametrize("kind", ["mlp", "cnn", pytest.param("transformer", marks=pytest.mark.slow)])
def test_the_losses_are_those_of_train_on_batch(kind: str, tmp_path: Path) -> None:
    keras.utils.set_random_seed(0)
    model, data = getattr(samples, kind)(CASES[kind]()), samples.arrays(kind)
    ours, _ = train(keras_job(model, data=data, name=kind), tmp_path)
    assert ours == pytest.approx(samples.losses_of_keras(model, data, STEPS), abs=1e-5)


@pytest.mark.filterwarnings("ignore:no forecast to compare with")  # of a CPU without bfloat16 instructions
@pytest.mark.parametrize(
    ("policy", "precision"), [("mixed_bfloat16", "amp-bf16"), pytest.param("bfloat16", "bf16", marks=pytest.mark.slow)]
)
def test_a_policy_casts_as_in_keras(policy: str, precision: str, tmp_path: Path) -> None:
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    try:
        model, data = samples.transformer("sgd"), samples.arrays("transformer")
        ours, _ = train(keras_job(model, data=data, name="transformer"), tmp_path, precision=precision)
        assert ours == pytest.approx(samples.losses_of_keras(model, data, STEPS), abs=1e-3)
        with pytest.raises(PrecisionError, match=policy), pytest.warns(UserWarning, match="no forecast"):
            train(keras_job(model, data=data, name="transformer"), tmp_path / "fp32")
    finally:
        keras.config.set_dtype_policy("float32")


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    """Moving statistics, seeds of dropout and the optimizer's state are in the checkpoint."""
    keras.utils.set_random_seed(0)
    job = keras_job(samples.cnn("nadam"), data=samples.arrays("cnn"), name="cnn")
    whole, first = train(job, tmp_path / "whole")
    begun, _ = train(job, tmp_path / "parts", until=2)
    rest, second = train(job, tmp_path / "parts")
    assert begun + rest == whole
    states = first.model.state_dict(), second.model.state_dict()
    assert {"batch_normalization.moving_mean:0", "dropout.seed_generator_state:0", "dense.kernel:0"} <= set(states[0])
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_recompute_changes_nothing(tmp_path: Path) -> None:
    """The dropout of a recomputed block draws the same numbers, and knows that it trains."""
    keras.utils.set_random_seed(0)
    job = keras_job(samples.transformer("sgd", dropout=0.3), data=samples.arrays("transformer"), name="transformer")
    plain, _ = train(job, tmp_path / "plain", until=3)
    recomputed, _ = train(job, tmp_path / "full", until=3, recompute="full")
    assert plain == recomputed


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras under NumPy 2
def test_a_trained_model_is_saved_by_keras(tmp_path: Path) -> None:
    keras.utils.set_random_seed(0)
    job = keras_job(samples.cnn(), data=samples.arrays("cnn"), name="cnn")
    _, trainer = train(job, tmp_path / "run", until=2)
    model = trainer.model.keras_model
    model.save(tmp_path / "cnn.keras")
    x = samples.arrays("cnn")[0][:4].astype("float32")
    again = keras.saving.load_model(tmp_path / "cnn.keras", compile=False)
    torch.testing.assert_close(again(x), model(x))


def test_a_job_whose_model_is_one_has_a_loss_of_its_own(tmp_path: Path) -> None:
    job = gpuwise.Job(
        model=samples.mlp,
        batch=lambda n: {"x": torch.rand(n, 20), "y": torch.rand(n, 1)},
        loss=lambda model, batch: (model(batch["x"]) - batch["y"]).square().mean(),
        optimizer="adamw",
    )
    losses, _ = train(job, tmp_path)
    assert len(losses) == STEPS
    assert gpuwise.forecast(job, on="h100-sxm", micro_batch=8).memory.by_category["parameter"] > 0
