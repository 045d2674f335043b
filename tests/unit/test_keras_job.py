"""What is taken over from a Keras model, and what is refused by name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gpuwise.errors import GpuwiseError, JobError, UnsupportedError
from gpuwise.job import resolve
from gpuwise.job.keras.backend import choose_backend

choose_backend()
keras = pytest.importorskip("keras", reason='needs Keras: pip install -c constraints.txt ".[keras]"')
if keras.backend.backend() != "torch":
    pytest.skip("Keras runs on another backend here", allow_module_level=True)

import keras_samples as samples  # noqa: E402

from gpuwise.job.keras.job import keras_job  # noqa: E402
from gpuwise.job.keras.module import module_of  # noqa: E402
from gpuwise.job.keras.optimizer import compiled_optimizer  # noqa: E402

optimizers, schedules, layers = keras.optimizers, keras.optimizers.schedules, keras.layers
WARM = schedules.CosineDecay(0.05, 20, warmup_target=0.1, warmup_steps=5)
OPTIMIZERS = {
    "SGD": lambda: optimizers.SGD(0.1),
    "momentum": lambda: optimizers.SGD(0.1, momentum=0.9),
    "Nesterov": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "SGD, decay": lambda: optimizers.SGD(0.1, momentum=0.9, weight_decay=0.01),
    "SGD, schedule": lambda: optimizers.SGD(WARM, momentum=0.9, nesterov=True),
    "Adam": lambda: optimizers.Adam(0.01),
    "Adam, amsgrad": lambda: optimizers.Adam(0.01, beta_1=0.8, amsgrad=True),
    "AdamW, schedule": lambda: optimizers.AdamW(WARM, weight_decay=0.1),
    "RMSprop": lambda: optimizers.RMSprop(0.01),
    "RMSprop, centered": lambda: optimizers.RMSprop(0.01, momentum=0.5, centered=True, weight_decay=0.1),
    "Adagrad": lambda: optimizers.Adagrad(0.1),
    "Adadelta": lambda: optimizers.Adadelta(1.0),
    "Nadam": lambda: optimizers.Nadam(0.01),
    "Adafactor": lambda: optimizers.Adafactor(0.01),
}


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras's Nadam under NumPy 2
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_updates_as_keras_does(name: str) -> None:
    """Gradients from 1e-7 to 1, among which an epsilon matters."""
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=shape).astype("float32") for shape in ((5, 4), (4,), (3, 2, 6))]
    model = samples.mlp(OPTIMIZERS[name]())
    variables = [keras.Variable(each) for each in weights]
    parameters = [torch.nn.Parameter(torch.tensor(each)) for each in weights]
    compiled = compiled_optimizer(model)
    optimizer = compiled.make(parameters)
    for step in range(20):
        gradients = [(rng.normal(size=w.shape) * 10.0 ** rng.integers(-7, 0)).astype("float32") for w in weights]
        model.optimizer.apply([torch.tensor(g) for g in gradients], variables)
        for group in optimizer.param_groups:
            factor = 1.0 if isinstance(compiled.schedule, str) else compiled.schedule(step, 20)
            group["lr"] = compiled.learning_rate * factor
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = torch.tensor(gradient)
        optimizer.step()
    for parameter, variable in zip(parameters, variables, strict=True):
        torch.testing.assert_close(parameter.detach(), variable.value.detach(), atol=1e-5, rtol=1e-5)


def compiled_with(optimizer: object) -> keras.Model:
    return samples.mlp(optimizer)


def with_layer(layer: keras.Layer) -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), layer])
    model.compile("sgd", "mse")
    return model


class Own(keras.Model):
    def train_step(self, data: object) -> dict[str, float]:
        return {}


class Noise(layers.Layer):
    def call(self, x: torch.Tensor) -> torch.Tensor:
        return x + keras.random.normal((4,))


def own_step() -> keras.Model:
    inputs = keras.Input((4,))
    model = Own(inputs, layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    return model


def not_compiled() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), layers.Dense(1)])


def not_built() -> keras.Model:
    model = keras.Sequential([layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: compiled_with(optimizers.Lion(1e-3)), "Lion, which has no equal"),
        (lambda: compiled_with(optimizers.Adam(clipnorm=1.0)), "clipnorm"),
        (lambda: compiled_with(optimizers.Adam(clipvalue=1.0)), "clipvalue"),
        (lambda: compiled_with(optimizers.Adam(use_ema=True)), "use_ema"),
        (lambda: compiled_with(optimizers.Adam(gradient_accumulation_steps=4)), "gradient_accumulation_steps"),
        (lambda: compiled_with(optimizers.Adagrad(weight_decay=0.1)), "weight_decay"),
        (lambda: with_layer(layers.Dense(4, kernel_constraint="non_neg")), "constraint"),
        (lambda: with_layer(layers.Dense(4, dtype="float64")), "float64"),
        (own_step, "train_step of its own"),
        (not_compiled, "not compiled"),
        (not_built, "not built"),
        (lambda: "model", "made a str"),
    ],
)
def test_what_would_train_otherwise_is_refused(model: object, message: str) -> None:
    with pytest.raises(GpuwiseError, match=message):
        keras_job(model)


def test_random_numbers_that_no_checkpoint_has_are_refused() -> None:
    job = keras_job(noisy)
    with pytest.raises(UnsupportedError, match="seeds of the process"):
        job.loss(job.model(), job.batch(2))


def noisy() -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(4), Noise()])
    model.compile("sgd", "mse")
    return model


def test_a_function_makes_equal_names_each_time() -> None:
    names = [list(dict(module_of(samples.transformer()).named_parameters())) for _ in range(2)]
    assert names[0] == names[1]
    assert {"embedding.embeddings:0", "block_1.attend._query_dense.kernel:0", "dense.bias:0"} <= set(names[0])


def test_a_model_is_copied_with_its_weights_and_stays_as_it_was() -> None:
    model = samples.cnn()
    copy = keras_job(model).model()
    for variable, (name, parameter) in zip(model.trainable_variables, copy.named_parameters(), strict=True):
        assert torch.equal(variable.value, parameter), name
        assert variable.value.data_ptr() != parameter.data_ptr()
    assert len(list(copy.parameters())) == len(model.trainable_variables)
    assert model.compiled


def test_several_inputs_and_outputs_are_columns() -> None:
    rng = np.random.default_rng(0)
    x = {"a": rng.normal(size=(8, 4)), "b": rng.normal(size=(8, 6))}
    y = {"number": rng.normal(size=(8, 1)), "kind": rng.integers(0, 3, 8)}
    model = samples.two_headed()
    job = keras_job(model, data=(x, y))
    columns = job.data()
    assert set(columns) == {"x/a", "x/b", "y/number", "y/kind"}
    ours = job.loss(job.model(), columns)
    theirs = model.compute_loss(None, *(keras.tree.map_structure(torch.as_tensor, each) for each in (y, model(x))))
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    assert {name: tuple(t.shape) for name, t in keras_job(samples.two_headed).batch(2).items()} == {
        "x/a": (2, 4),
        "x/b": (2, 6),
        "y/number": (2, 1),
        "y/kind": (2,),
    }


FILE = """
import keras, numpy as np

def net(width=4):
    model = keras.Sequential([keras.Input((None, 3)), keras.layers.LSTM(width), keras.layers.Dense(1)])
    model.compile("rmsprop", "mse")
    return model

model = net()
half = keras.Sequential([keras.layers.Dense(1)])
number = 3
"""
DATA = """
def data():
    return np.zeros((10, 7, 3)), np.zeros((10, 1)), np.ones(10)
"""


def test_a_file_names_a_model_or_a_function_and_data(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(FILE)
    job = resolve(f"keras:{path}:net", seq_len=5)
    assert (job.name, job.seq_len, tuple(job.batch(2)["x"].shape)) == ("net:net", 5, (2, 5, 3))
    assert resolve(f"keras:{path}:model").seq_len == 128
    assert any("128" in str(note) for note in resolve(f"keras:{path}:model").assumptions)
    assert any("LSTM" in str(note) for note in job.assumptions)
    path.write_text(FILE + DATA)
    job = resolve(f"keras:{path}:model")
    assert (job.samples, tuple(job.batch(2)["x"].shape), job.batch(2)["x"].dtype) == (10, (2, 7, 3), torch.float32)
    assert set(job.data()) == {"x", "y", "sample_weight"}


@pytest.mark.parametrize(
    ("name", "message"),
    [("half", "not built"), ("number", "not a Keras model"), ("nothing", "has no 'nothing'")],
)
def test_a_file_without_such_a_model(name: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(FILE)
    with pytest.raises(JobError, match=message):
        resolve(f"keras:{path}:{name}")


def test_a_model_without_the_prefix_is_told_of_it(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(FILE)
    with pytest.raises(JobError, match="is a Keras model") as error:
        resolve(f"{path}:model")
    assert f"keras:{path}:model" in str(error.value.ways_out)


def test_another_backend_is_refused(tmp_path: Path) -> None:
    code = "from gpuwise.job import resolve; resolve('keras:net.py:model')"
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert "Keras runs on its jax backend here" in done.stderr
