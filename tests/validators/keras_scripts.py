"""Exported scripts of a Keras model on four virtual devices, beside gpuwise's own training: the losses of each step.

    python -m tests.validators.keras_scripts --python PYTHON

PYTHON has keras, jax and tensorflow-cpu; the Python that runs this has gpuwise with its extra keras.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from gpuwise.export.target import DeviceSet, Heading
from gpuwise.export.targets import SCRIPTS, target_of
from gpuwise.export.values import values_of_strategy
from gpuwise.export.writing import keys_of_plan
from gpuwise.strategy import Mesh, Strategy

STEPS, DEVICES, MICRO_BATCH, TOLERANCE = 4, 4, 4, 1e-5
HEADING = Heading("net:net", "0" * 64, "0", "keras", "python run.py net.py:net")
NET = """
import keras, numpy as np

def net():
    layers = keras.layers
    model = keras.Sequential([
        keras.Input((8, 8, 1)),
        layers.Conv2D(8, 3, activation="relu", kernel_initializer="ones"),
        layers.LayerNormalization(),
        layers.Flatten(),
        layers.Dense(10, kernel_initializer="zeros"),
    ])
    model.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model

def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(64, 8, 8, 1)).astype("float32"), rng.integers(0, 10, 64)
"""
OURS = """
import numpy as np, gpuwise, net
from gpuwise.job.keras.job import keras_job
from gpuwise.runtime.data.order import shuffled

x, y = net.data()
order = shuffled(len(x), seed=0, epoch=0).numpy()
rows = np.empty_like(x), np.empty_like(y)
rows[0][order], rows[1][order] = x, y  # so that the run's shuffle gives the rows in order
job = keras_job(net.net, data=rows, name="net")
for step in gpuwise.Trainer(job, steps={steps}, micro_batch={batch}, precision="fp32", run="run"):
    print("step", step.step, "loss", step.loss)
"""
# TensorFlow divides a CPU by a call before the script runs, JAX by a variable of the environment.
LOGICAL = """
import runpy, sys, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * {devices})
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def losses(command: list[str], folder: Path, **environment: str) -> list[float]:
    """The losses that a program prints, a line a step."""
    inherited = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    done = subprocess.run(command, cwd=folder, env={**inherited, **environment}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return [float(line.split()[3]) for line in done.stdout.splitlines() if line.startswith("step ")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", required=True, help="the Python with keras, jax and tensorflow-cpu")
    python = parser.parse_args().python
    strategy = Strategy(micro_batch=MICRO_BATCH, mesh=Mesh(dp_replicate=DEVICES))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "net.py").write_text(NET)
        (folder / "logical.py").write_text(LOGICAL.format(devices=DEVICES))
        ours = losses(
            [sys.executable, "-c", OURS.format(steps=STEPS, batch=MICRO_BATCH * DEVICES)], folder, KERAS_BACKEND="torch"
        )
        print("gpuwise   ", *(f"{loss:.6f}" for loss in ours))
        assert len(ours) == STEPS
        for script in SCRIPTS:
            target = target_of(script)
            keys, _, _ = keys_of_plan(target, {**values_of_strategy(strategy), "steps": STEPS}, DeviceSet(DEVICES))
            (folder / f"run_{script}.py").write_text(target.write(keys, HEADING))
            run = [f"run_{script}.py", "net.py:net", "--in-order"]
            if script == "tensorflow":
                theirs = losses([python, "logical.py", *run], folder)
            else:
                theirs = losses([python, *run], folder, XLA_FLAGS=f"--xla_force_host_platform_device_count={DEVICES}")
            print(f"{script:<10}", *(f"{loss:.6f}" for loss in theirs))
            assert len(theirs) == STEPS
            assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) <= TOLERANCE


if __name__ == "__main__":
    main()
