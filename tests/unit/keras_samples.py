"""Keras models that several tests train. Imported after Keras's backend is set."""

from __future__ import annotations

import keras
import numpy as np
import torch

from gpuwise.runtime.data.order import shuffled

SAMPLES, MICRO_BATCH = 96, 16
layers, losses = keras.layers, keras.losses
Arrays = tuple[np.ndarray, np.ndarray]


@keras.saving.register_keras_serializable()
class Block(layers.Layer):
    """A block of a transformer, whose layers learn from its call whether they train."""

    def __init__(self, width: int = 16, dropout: float = 0.0, **settings: object):
        super().__init__(**settings)
        self.width, self.dropout = width, dropout
        self.attend = layers.MultiHeadAttention(2, width // 2)
        self.norms = [layers.LayerNormalization(), layers.LayerNormalization()]
        self.up, self.down = layers.Dense(2 * width, activation="gelu"), layers.Dense(width)
        self.drop = layers.Dropout(dropout)

    def build(self, shape: tuple[int, ...]) -> None:
        self.attend.build(shape, shape)
        for norm in self.norms:
            norm.build(shape)
        self.up.build(shape)
        self.down.build((*shape[:-1], 2 * self.width))

    def call(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.norms[0](x)
        x = x + self.attend(inner, inner, use_causal_mask=True)
        return x + self.drop(self.down(self.up(self.norms[1](x))))

    def get_config(self) -> dict[str, object]:
        return {**super().get_config(), "width": self.width, "dropout": self.dropout}


def mlp(optimizer: object = "rmsprop") -> keras.Model:
    hidden = layers.Dense(32, activation="relu", kernel_regularizer="l2")
    model = keras.Sequential([keras.Input((20,)), hidden, layers.Dense(1, activation="sigmoid")])
    model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])
    return model


def cnn(optimizer: object = "adam") -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((12, 12, 3)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.Dropout(0.2, seed=1),
            layers.Flatten(),
            layers.Dense(3),
        ]
    )
    model.compile(optimizer, losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def transformer(optimizer: object = "adamw", *, blocks: int = 2, dropout: float = 0.0) -> keras.Model:
    tokens = keras.Input((12,), dtype="int32")
    x = layers.Embedding(50, 16)(tokens)
    for _ in range(blocks):
        x = Block(16, dropout)(x)
    model = keras.Model(tokens, layers.Dense(50)(x))
    model.compile(optimizer, losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def two_headed(optimizer: object = "adam") -> keras.Model:
    inputs = {"a": keras.Input((4,), name="a"), "b": keras.Input((6,), name="b")}
    x = layers.Concatenate()([inputs["b"], inputs["a"]])
    model = keras.Model(inputs, {"number": layers.Dense(1, name="number")(x), "kind": layers.Dense(3, name="kind")(x)})
    sparse = losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, {"number": "mse", "kind": sparse}, loss_weights={"number": 2.0, "kind": 0.5})
    return model


def arrays(kind: str) -> Arrays:
    """Data for a model of this name."""
    rng = np.random.default_rng(0)
    if kind == "mlp":
        return rng.normal(size=(SAMPLES, 20)), rng.integers(0, 2, SAMPLES)
    if kind == "cnn":
        return rng.normal(size=(SAMPLES, 12, 12, 3)), rng.integers(0, 3, SAMPLES)
    return rng.integers(0, 50, (SAMPLES, 12)), rng.integers(0, 50, (SAMPLES, 12))


def losses_of_keras(model: keras.Model, data: Arrays, steps: int) -> list[float]:
    """What train_on_batch gives of the batches that a run of gpuwise takes."""
    order = shuffled(SAMPLES, seed=0, epoch=0).numpy()
    rows = [order[MICRO_BATCH * step : MICRO_BATCH * (step + 1)] for step in range(steps)]
    x = data[0].astype("float32") if data[0].dtype == np.float64 else data[0]
    return [float(model.train_on_batch(x[row], data[1][row], return_dict=True)["loss"]) for row in rows]
