"""A Keras 3 model on its PyTorch backend: forecast, planned and trained as it was compiled.

gpuwise forecast keras:examples/keras_digits.py:model --on rtx-4090
gpuwise train keras:examples/keras_digits.py:model --steps 50
"""

import keras
import numpy as np
from sklearn.datasets import load_digits

layers = keras.layers


def model() -> keras.Model:
    network = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dropout(0.2, seed=1),
            layers.Dense(10),
        ]
    )
    network.compile(
        optimizer=keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(1e-2, decay_steps=1000)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return network


def data() -> tuple[np.ndarray, np.ndarray]:
    digits = load_digits()
    return digits.images[..., None] / 16, digits.target
