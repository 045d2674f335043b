"""graph_line: a command that runs an exported graph with the settings that were simulated."""

from __future__ import annotations

import shlex

from gpuwise.serving.graph_engines import GraphEngine

FILE = "model.onnx"  # what torch.onnx.export(model, example, "model.onnx", dynamo=True, dynamic_shapes=...) wrote

# Settings: https://onnxruntime.ai/docs/performance/tune-performance/threading.html
_ONNXRUNTIME = """
import numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = {threads}
cpu = ["CPUExecutionProvider"]
session = onnxruntime.InferenceSession("{file}", options, cpu)
types = {{"tensor(float)": "float32", "tensor(bool)": "bool"}}
batch = {{}}
for each in session.get_inputs():
    sizes = [n if isinstance(n, int) else {batch} for n in each.shape]
    batch[each.name] = numpy.zeros(sizes, types.get(each.type, "int64"))
print([output.shape for output in session.run(None, batch)])
"""
# Settings: https://docs.openvino.ai/2026/openvino-workflow/running-inference/inference-devices-and-modes/cpu-device.html
_OPENVINO = """
import numpy, openvino
settings = {{"INFERENCE_NUM_THREADS": {threads}, "PERFORMANCE_HINT": "LATENCY"}}
settings["INFERENCE_PRECISION_HINT"] = "f32"
model = openvino.Core().compile_model("{file}", "CPU", settings)
batch = []
for each in model.inputs:
    sizes = [{batch} if n.is_dynamic else n.get_length() for n in each.partial_shape]
    batch.append(numpy.zeros(sizes, each.element_type.to_dtype()))
print([output.shape for output in model(batch).values()])
"""
_SCRIPTS = {"onnxruntime": _ONNXRUNTIME, "openvino": _OPENVINO}


def graph_line(engine: GraphEngine | None, *, batch: int, threads: int | None) -> str:
    """A command that loads FILE as the plan's server does, and runs a full batch of zeros; "" of plain PyTorch, and for a
    processor whose cores are not known. The server around it is the user's own."""
    if engine is None or not threads:
        return ""
    script = _SCRIPTS[engine.name].format(file=FILE, batch=batch, threads=threads)
    return f"python -c {shlex.quote(script)}"
