"""ExportedModel: a job's forward pass behind the server, run by ONNX Runtime or OpenVINO on the processor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import nn

from gpuwise.errors import UnsupportedError
from gpuwise.job import Job
from gpuwise.job.batches import checked_batch, named_tensors
from gpuwise.job.dependencies import require
from gpuwise.job.job import Batch
from gpuwise.runtime.build.program import Program
from gpuwise.runtime.serving.exporting import OwnForward, export, input_names, model_arguments
from gpuwise.runtime.serving.models import SAMPLES, WARM_UPS, built, check_collates, collated
from gpuwise.serving.requests import Requests
from gpuwise.strategy import Strategy

Session = Callable[[dict[str, np.ndarray]], list[np.ndarray]]  # the outputs of a pass, from its inputs by name
EXAMPLES = 2  # samples of the call that is exported: of one, sizes are taken for constants
TOLERANCE = 1e-3  # of an output and of the largest one: products of fp32 in another order differ by some 1e-6 a layer


def onnxruntime_session(path: Path, threads: int) -> Session:
    """A graph in ONNX Runtime, on its CPU provider."""
    runtime = require("onnxruntime", purpose="serve with ONNX Runtime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    used = {each.name for each in session.get_inputs()}
    return lambda inputs: session.run(None, {name: array for name, array in inputs.items() if name in used})


def openvino_session(path: Path, threads: int) -> Session:
    """A graph in OpenVINO, on its CPU device, in fp32."""
    openvino = require("openvino", purpose="serve with OpenVINO")
    core = openvino.Core()
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    model = core.compile_model(core.read_model(path), "CPU", settings)
    used = {name for port in model.inputs for name in port.get_names()}

    def run(inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        outputs = model({name: array for name, array in inputs.items() if name in used})
        return [outputs[port] for port in model.outputs]

    return run


SESSIONS = {"onnxruntime": onnxruntime_session, "openvino": openvino_session}


class ExportedModel:
    """A model without a cache (see models.ForwardModel), as a graph that a runtime has optimized, with as many threads as
    PyTorch has. Its file is in a temporary folder, and gone once it is read. Outputs are compared with PyTorch's first.

    Arguments:
        batch: most samples of a pass.
        runtime: "onnxruntime" or "openvino".

    Raises UnsupportedError where the pass cannot be exported, or gives other outputs than PyTorch's, and
    MissingDependencyError without the runtime.
    """

    def __init__(self, job: Job, strategy: Strategy, *, batch: int, runtime: str) -> None:
        check_collates(job)
        require(runtime, purpose=f"serve with --engine {runtime}")
        program = built(job, strategy, torch.device("cpu"))
        model, pass_of = _exportable(job, program.model)
        batches = [checked_batch(job, 1) for _ in range(SAMPLES)]
        with torch.no_grad():
            samples = [pass_of(batch) for batch in batches]
            several = pass_of(collated(batches[:EXAMPLES]))
        self._samples = [_arrays(sample) for sample in samples]
        self._grows = [
            len(few) > len(one) if one.ndim else False for one, few in zip(self._samples[0], _arrays(several), strict=True)
        ]
        self._names = input_names(len(self._grows))
        with TemporaryDirectory(prefix="gpuwise-", ignore_cleanup_errors=True) as folder:
            path = Path(folder) / "model.onnx"
            export(model, samples[0], several, path, job=job.name or "the job")
            self._session = SESSIONS[runtime](path, torch.get_num_threads())
        for size in sorted({1, batch}):
            self._compare(program, collated([batches[request % SAMPLES] for request in range(size)]), size, runtime=runtime)
            for _ in range(WARM_UPS):
                self.run(range(size))

    def run(self, group: Sequence[int]) -> list[np.ndarray]:
        """The outputs of some requests together."""
        samples = [self._samples[request % SAMPLES] for request in group]
        columns = zip(self._names, self._grows, zip(*samples, strict=True), strict=True)
        return self._session({name: np.concatenate(column) if grows else column[0] for name, grows, column in columns})

    def serving(self, load: Requests) -> ExportedModel:
        """Its passes are the same for any load."""
        return self

    def answer(self, group: Sequence[int], first: Callable[[int], None], last: Callable[[int], None]) -> None:
        self.run(group)
        for request in group:
            first(request)
            last(request)

    def _compare(self, program: Program, batch: Batch, size: int, *, runtime: str) -> None:
        """Raises UnsupportedError where a batch gives other outputs than under PyTorch."""
        expected = _arrays(program.infer(batch))
        actual = self.run(range(size))
        if len(expected) == len(actual) and all(map(_close, expected, actual)):
            return
        raise UnsupportedError(
            f"{program.job.name or 'the job'} gives other outputs in {runtime} than in PyTorch, for {size} samples.",
            [
                "--engine pytorch",
                "a forward pass without random numbers, and without Python branches on values or on the number of samples",
            ],
        )


def _exportable(job: Job, model: nn.Module) -> tuple[nn.Module, Callable[[Batch], Batch]]:
    """The module to export, and the arguments of its call with a batch."""
    if job.forward is not None:
        return OwnForward(model, job.forward), lambda batch: ((batch,), {})
    assert job.loss is not None
    return model, partial(model_arguments, model, job.loss)


def _arrays(tensors: Batch) -> list[np.ndarray]:
    return [tensor.detach().numpy() for _, tensor in named_tensors(tensors)]


def _close(expected: np.ndarray, actual: np.ndarray) -> bool:
    largest = float(np.abs(expected).max(initial=0.0))
    return expected.shape == actual.shape and np.allclose(actual, expected, rtol=TOLERANCE, atol=TOLERANCE * largest)
