"""Optional packages: imported where they are needed; the error for a missing one names its extra."""

from __future__ import annotations

import importlib
from types import ModuleType

from gpuwise.errors import MissingDependencyError
from gpuwise.job.library_logging import silence_libraries

_EXTRAS = {
    "torch": "torch",
    "scipy": "measure",
    "transformers": "hf",
    "timm": "timm",
    "keras": "keras",
    "xllamacpp": "llamacpp",
    "gguf": "llamacpp",
    "torchao": "lowbit",
    "bitsandbytes": "lowbit",
    "peft": "lowbit",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "onnx": "onnx",
    "onnxscript": "onnx",
    "onnxruntime": "onnx",
    "openvino": "openvino",
}


def require(package: str, *, purpose: str, extra: str = "") -> ModuleType:
    """Imports an optional package.

    Arguments:
        package: one of those of the extras: "torch", "scipy", "transformers", "timm", "keras", "torchao", "bitsandbytes",
            "peft", "tensorboard", "wandb", "onnx", "onnxscript", "onnxruntime", "openvino", "xllamacpp", "gguf".
        purpose: what it is needed for, completing "... is needed to".
        extra: the extra that has all that the purpose needs; "" (default): that of the package.

    Raises MissingDependencyError when it is not installed.
    """
    silence_libraries()
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:  # installed, but something it needs is not
            raise
        raise MissingDependencyError(
            f"{package} is needed to {purpose} and is not installed.",
            [f'pip install "gpuwise[{extra or _EXTRAS[package]}]"'],
        ) from error
