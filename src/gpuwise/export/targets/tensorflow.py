"""Keras on its TensorFlow backend, as a script: MirroredStrategy over the devices of one machine."""

from __future__ import annotations

from gpuwise.export.targets.keras_script import KerasBackend, target_of_backend

_ENTER = """\
import contextlib

import tensorflow as tf

scope = contextlib.nullcontext()
if devices > 1:
    present = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    if len(present) < devices:
        sys.exit(f"the plan is for {devices} devices, and TensorFlow sees {len(present)}")
    names = [device.name for device in present[:devices]]
    scope = tf.distribute.MirroredStrategy(names).scope()"""

TARGET = target_of_backend(
    KerasBackend(
        "tensorflow",
        "a script of Keras with MirroredStrategy",
        "tf.distribute.MirroredStrategy",
        _ENTER,
        replicas="",
        compiles=False,
    )
)
