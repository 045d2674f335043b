"""Keras on its JAX backend, as a script: the way of a Keras model to TPUs, which PyTorch 2.13 does not run on."""

from __future__ import annotations

from gpuwise.export.targets.keras_script import KerasBackend, target_of_backend

_ENTER = """\
import contextlib

scope = contextlib.nullcontext()
if devices > 1:
    present = keras.distribution.list_devices()
    if len(present) < devices:
        sys.exit(f"the plan is for {devices} devices, and JAX sees {len(present)}")
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=present[:devices]))"""

TARGET = target_of_backend(
    KerasBackend(
        "jax",
        "a script of Keras on its JAX backend",
        "keras.distribution.DataParallel",
        _ENTER,
        replicas="BatchNormalization takes its statistics over the samples of all devices",
        compiles=True,
    )
)
