"""Notes on what should be mended in an installation."""

from __future__ import annotations

from gpuwise.notes.note import kind_of_note


@kind_of_note()
def no_pytorch() -> str:
    """PyTorch is not installed."""
    return 'PyTorch is absent: presets can be planned, other jobs not. pip install "gpuwise[torch]"'


@kind_of_note()
def pytorch_for_cpus() -> str:
    """PyTorch does not use the GPU that is there."""
    return "PyTorch is a build for CPUs alone and leaves the GPU unused: https://pytorch.org/get-started has others"


@kind_of_note()
def torchvision_for_cuda() -> str:
    """PyTorch and torchvision are builds that do not go together."""
    return (
        "torchvision is a build for CUDA beside a PyTorch for CPUs: its operators do not load, and plain Python "
        "cannot import it. gpuwise does, without them; https://pytorch.org/get-started has the build that fits"
    )


@kind_of_note()
def presets_not_recorded(*, presets: str) -> str:
    """Recordings of presets are missing."""
    return f"no recorded trace of {presets}: `gpuwise record` makes them"


@kind_of_note()
def measurement_left_out(*, reason: str) -> str:
    """What was measured on this machine is damaged. reason: with the file."""
    return f"what was measured on this machine is left out: {reason}; `gpuwise measure` writes it anew"


@kind_of_note()
def checks_removed() -> str:
    """Python is run without its checks."""
    return "Python runs with -O, which removes checks"


@kind_of_note()
def price_list_ignored(*, reason: str) -> str:
    """A fetched price list cannot be read, and the shipped prices count."""
    return f"{reason} The shipped prices of that provider count; `gpuwise offers --refresh` fetches it again"
