"""A compiled Keras model as a Job: its loss, its optimizer and batches like its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor, nn

from gpuwise.errors import GpuwiseError, JobError, UnsupportedError, message_of
from gpuwise.job.job import Batch, Job
from gpuwise.job.keras.backend import (
    device_of_new_tensors,
    import_keras,
    is_keras_model,
    model_without_memory,
    on_device,
)
from gpuwise.job.keras.batches import Arrays, batch_like_data, batch_like_model, columns, values_of
from gpuwise.job.keras.module import KerasModule, module_of
from gpuwise.job.keras.optimizer import compiled_optimizer
from gpuwise.notes import Note
from gpuwise.notes import keras as notes

if TYPE_CHECKING:
    import keras


def keras_job(
    model: keras.Model | Callable[[], keras.Model],
    *,
    data: Arrays | Callable[[], Arrays] | None = None,
    name: str = "",
    seq_len: int | None = None,
    image_size: int | None = None,
) -> Job:
    """The job of a Keras 3 model on its PyTorch backend.

    Arguments:
        model: a compiled model, whose weights the run begins with, or a function that makes one, whose weights are drawn
            anew with the run's seed. A function lets forecasts make the model without memory.
        data: arrays (x, y) or (x, y, sample_weight) with one row a sample, or a function that makes them; x and y may be dicts
            or lists of arrays. None: forecasts, and training on random numbers.
        name: what reports call the job.
        seq_len, image_size: sizes that the model's inputs leave open; where they are None, 128 and 224 are assumed.

    Raises MissingDependencyError without Keras, UnsupportedError for a setting that would train otherwise here, JobError for a
    model that cannot be built or is not compiled.
    """
    import_keras(purpose="build a Keras model")
    make = partial(_copy, model) if is_keras_model(model) else partial(_built, model)
    with model_without_memory():
        example = make().keras_model
    compiled = model if is_keras_model(model) else example
    _check_compiled(compiled)
    optimizer = compiled_optimizer(compiled)
    arrays = data() if callable(data) else data
    if arrays is None:
        of_model = batch_like_model(example, seq_len=seq_len, image_size=image_size)
        batch, guesses = of_model.make, of_model.notes
        seq_len, image_size = of_model.seq_len, of_model.image_size
    else:
        batch, guesses, seq_len, image_size = batch_like_data(columns(arrays)), (), None, None
    return Job(
        make,
        batch,
        _loss,
        optimizer=optimizer.make,
        learning_rate=optimizer.learning_rate,
        schedule=optimizer.schedule,
        clip_norm=optimizer.clip_norm,
        data=None if data is None else partial(_columns_of, data),
        samples=None if arrays is None else len(next(iter(columns(arrays).values()))),
        name=name,
        seq_len=seq_len,
        image_size=image_size,
        assumptions=(*guesses, *_notes_on(compiled)),
    )


def _columns_of(data: Arrays | Callable[[], Arrays]) -> Mapping[str, Tensor]:
    return columns(data() if callable(data) else data)


def _built(make: Callable[[], keras.Model]) -> KerasModule:
    """The model of a function, on the device where PyTorch makes tensors."""
    with on_device(device_of_new_tensors()):
        try:
            model = make()
        except GpuwiseError:
            raise
        except Exception as error:
            raise JobError(
                f"the function of the Keras model raised: {type(error).__name__}: {message_of(error)}.",
                ["call it by itself in Python to see where"],
            ) from error
    if not is_keras_model(model):
        raise JobError(f"the function made a {type(model).__name__}, not a keras.Model.", ["return the compiled model from it"])
    return module_of(model)


def _copy(model: keras.Model) -> KerasModule:
    """A copy of a model, with its weights unless it is made on `meta`."""
    device = device_of_new_tensors()
    with on_device(device):
        try:
            clone = _clone(model)
        except Exception as error:  # of a constructor whose arguments its config lacks
            raise JobError(
                f"the Keras model {model.name} cannot be made again from its config: {type(error).__name__}: "
                f"{message_of(error)}.",
                ["name a function that makes and compiles it, instead of the model"],
            ) from error
        if model.compiled and model._compile_loss is not None:
            clone.compile("sgd", model.loss, loss_weights=model._compile_loss._user_loss_weights)
        if device != "meta":
            for variable, source in zip(clone.variables, model.variables, strict=True):
                variable.assign(source.value)
    return module_of(clone)


def _clone(model: keras.Model) -> keras.Model:
    """A model of the same layers, built, not compiled, with weights of its own."""
    import keras

    if not isinstance(model, keras.Sequential) and not hasattr(model, "_operations"):  # a subclass with its own `call`
        clone = type(model).from_config(model.get_config())
        if not clone.built:
            clone.build_from_config(model.get_build_config())
        return clone
    compiled, model.compiled = model.compiled, False  # else the optimizer's numbers are copied, which `meta` has not
    try:
        return keras.models.clone_model(model)
    finally:
        model.compiled = compiled


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    """The loss that `fit` minimises, of columns as `gpuwise.job.keras.batches.columns` makes them."""
    x, y, weight = (values_of(batch, name) for name in ("x", "y", "sample_weight"))
    loss: Tensor = model.compute_loss(x, y, model(x), weight)  # type: ignore[operator]  # of KerasModule, maybe wrapped
    return loss


def _check_compiled(model: keras.Model) -> None:
    import keras

    if not model.compiled:
        raise JobError(
            f"the Keras model {model.name} is not compiled, so it has no loss and no optimizer.",
            ['model.compile("adam", loss=...)', "a gpuwise.Job whose model is the Keras model, with a loss of its own"],
        )
    if type(model).train_step is not keras.Model.train_step:
        raise UnsupportedError(
            f"{type(model).__name__} has a train_step of its own, which gpuwise does not run.",
            ["a gpuwise.Job whose model is the Keras model, with a `step` of its own (docs/jobs.md)"],
        )


def _notes_on(model: keras.Model) -> Iterator[Note]:
    import keras

    if model._compile_metrics is not None:
        yield notes.metrics_not_computed()
    recurrent = [each for each in model._flatten_layers() if isinstance(each, keras.layers.LSTM | keras.layers.GRU)]
    if recurrent:
        yield notes.recurrent_layers_as_loops(layers=len(recurrent))
