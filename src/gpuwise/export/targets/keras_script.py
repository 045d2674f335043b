"""What the scripts of Keras's other backends share: their table, their text, and how they are read."""

from __future__ import annotations

from dataclasses import dataclass
from string import Template
from textwrap import indent

from gpuwise.export.formats import call_of, call_text
from gpuwise.export.rows import ByValue, Cell, Count, Keys, Refused, Row, Scripted, layout_row
from gpuwise.export.target import ExportTarget, Heading
from gpuwise.export.targets import common
from gpuwise.json_types import JsonObject

_BY_LAYER = "Keras casts by layer, autocast by operator"
_XLA = "XLA compiles the step as a whole"
_SHARDS = Refused("keeps shards of parameters, and the script keeps a copy on each device", ("--mesh dp=N",))


@dataclass(frozen=True)
class KerasBackend:
    """A backend of Keras.

    Attributes:
        name: as KERAS_BACKEND has it.
        title: what the file is, in words.
        distribution: the class that keeps a copy of the model on each device.
        enter: lines of the script that make the devices ready for a model: `devices` is how many.
        replicas: how its replicas differ, in a sentence; "" where they do not.
        compiles: whether the step is compiled by itself.
    """

    name: str
    title: str
    distribution: str
    enter: str
    replicas: str
    compiles: bool


def target_of_backend(backend: KerasBackend) -> ExportTarget:
    """The target of a backend's script."""

    def write(keys: Keys, heading: Heading) -> str:
        comment = "".join(f"# {line}\n" for line in heading.lines())
        settings = call_text("dict", dict(keys), {}, level=0)
        enter = indent(backend.enter, "    ")
        return comment + _SCRIPT.substitute(backend=backend.name, settings=settings, enter=enter)

    def recognises(tree: JsonObject) -> bool:
        return tree.get("backend") == backend.name

    return ExportTarget(
        backend.name if backend.name != "jax" else "keras",
        backend.title,
        "run.py",  # keras.py would be what `import keras` finds
        _rows(backend),
        write=write,
        parse=lambda text: call_of(text, (".dict",)),
        recognises=recognises,
        command=lambda world, file: f"python {file} PATH.py:NAME",
        fixed={"backend": backend.name},
        world=lambda world: {"devices": world.devices},
        of_a_keras_model=True,
    )


def _rows(backend: KerasBackend) -> tuple[Row, ...]:
    never = common.never
    compiled = Cell(differs="" if not backend.compiles else _XLA)
    return (
        ByValue(
            ("precision",),
            {
                "fp32": Cell({"dtype_policy": "float32"}),
                "tf32": Cell({"dtype_policy": "float32"}, differs="products are as the device makes those of fp32"),
                "amp-bf16": Cell({"dtype_policy": "mixed_bfloat16"}, differs=_BY_LAYER),
                "amp-fp16": Cell({"dtype_policy": "mixed_float16"}, differs=_BY_LAYER),
                "bf16": Cell({"dtype_policy": "bfloat16"}),
                "fp16": Refused("has fp32 master weights, and Keras's float16 has none", ("--precision amp-fp16",)),
                "fp8": Refused("has products in fp8, which the script does not set up", ("--precision amp-bf16",)),
            },
        ),
        Count("micro_batch", "batch_size_of_a_device"),
        *never("makes several passes before an update", "accumulation", ways_out=("--accumulate 1",)),
        *never("recomputes blocks", "recompute", ways_out=("--recompute none",)),
        layout_row(
            {
                "one-device": Cell({"distribution": None}),
                "replicas": Cell({"distribution": backend.distribution}, differs=backend.replicas),
                **{f"shards-{what}": _SHARDS for what in ("parameters", "gradients", "optimizer")},
                **{f"replicas-of-shards-{what}": _SHARDS for what in ("parameters", "gradients", "optimizer")},
            }
        ),
        *never("splits layers or sequences", "tp", "cp", "pp", "ep", ways_out=("--mesh dp=N",)),
        *never("is of a mesh that the script does not have", "sequence_parallel", "loss_parallel", "context"),
        *never("is of a pipeline", "pipeline_schedule", "stages_per_rank"),
        *never("reduces gradients in bf16", "compress_gradients"),
        *never("has another optimizer, and the script takes the compiled one", "optimizer", ways_out=("compile it with that",)),
        *never("is of PyTorch's optimizers", "optimizer_kernels", "optimizer_in_backward", "keep_gradients"),
        *never("moves state to the host", "offload", ways_out=("--offload none",)),
        *never("is of PyTorch's layers", "adapter", "adapter_rank", "channels_last"),
        ByValue(("compile",), {False: compiled, True: Cell({"jit_compile": True})}),
        common.TRAINING_ONLY,
        *common.thread_rows(),
        Scripted("loader_workers", "arrays are in memory: no workers"),
        Scripted("prefetch", "fit reads ahead by itself"),
        Scripted("pinned_memory", "fit copies by itself"),
        *common.size_rows(),
        Count("steps", "steps"),
        Count("checkpoint_steps", "checkpoint_steps", differs="weights alone are saved: a restart begins a new run with them"),
    )


_SCRIPT = Template('''
import argparse
import importlib.util
import math
import os
import pathlib
import sys

os.environ["KERAS_BACKEND"] = "$backend"
import keras  # noqa: E402

SETTINGS = $settings


class Steps(keras.callbacks.Callback):
    """Prints the loss of each step, saves weights, and ends the training after the last step."""

    def __init__(self, steps):
        super().__init__()
        self.steps, self.step, self.seen = steps, 0, (0, 0.0)

    def on_train_batch_end(self, batch, logs=None):
        count, total = (0, 0.0) if batch == 0 else self.seen  # Keras gives the mean of the epoch so far
        self.seen = count + 1, float(logs["loss"]) * (count + 1)
        self.step += 1
        print(f"step {self.step} loss {self.seen[1] - total:.7f}", flush=True)
        every = SETTINGS.get("checkpoint_steps")
        if every and self.step % every == 0:
            self.model.save_weights("checkpoint.weights.h5")
        if self.steps and self.step >= self.steps:
            self.model.stop_training = True


def load(path):
    """The user's file, which makes the model and its data."""
    sys.path.insert(0, str(pathlib.Path(path).resolve().parent))
    spec = importlib.util.spec_from_file_location("job", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train(job, *, steps, in_order):
    path, _, name = job.rpartition(":")
    keras.config.set_dtype_policy(SETTINGS.get("dtype_policy", "float32"))
    devices = SETTINGS["devices"]
$enter
    with scope:
        module = load(path)
        model = getattr(module, name)
        model = model if isinstance(model, keras.Model) else model()
    arrays = module.data() if callable(module.data) else module.data
    batch = SETTINGS["batch_size_of_a_device"] * devices
    rows = len(keras.tree.flatten(arrays)[0]) // batch * batch  # what does not fill a step is left out
    x, y, *weight = keras.tree.map_structure(lambda array: array[:rows], arrays)
    epochs = math.ceil(steps / (rows // batch)) if steps else 1
    weights = {"sample_weight": weight[0]} if weight else {}
    model.fit(
        x, y, batch_size=batch, epochs=epochs, shuffle=not in_order, verbose=0, callbacks=[Steps(steps)], **weights
    )
    model.save_weights("trained.weights.h5")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Trains a Keras model on its $backend backend as a plan of gpuwise says.")
    parser.add_argument("job", help="path/to/file.py:name of a compiled model, or of a function that returns one")
    parser.add_argument("--steps", type=int, default=SETTINGS.get("steps"))
    parser.add_argument("--in-order", action="store_true", help="take rows as they are, without a shuffle")
    arguments = parser.parse_args()
    train(arguments.job.removeprefix("keras:"), steps=arguments.steps, in_order=arguments.in_order)
''')
