"""Explains an out-of-memory error: the forecast, the tensors that grew, and the remedies."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from gpuwise.cost.forecast import MemoryForecast
from gpuwise.errors import DoesNotFitError, GpuwiseError, message_of
from gpuwise.job.batches import named_tensors
from gpuwise.runtime.devices import backend_of
from gpuwise.strategy import Strategy
from gpuwise.units import format_bytes

# Messages of PyTorch's allocators ("CUDA out of memory", "HIP ...", "XPU ...", "MPS backend ..."), NumPy, the operating
# system, cuBLAS, hipBLAS and Intel's runtime (Unified Runtime and Level Zero).
_SIGNS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "unable to allocate",
    "cublas_status_alloc_failed",
    "hipblas_status_alloc_failed",
    "out_of_device_memory",
    "out_of_host_memory",
)
_TRIED = re.compile(r"(?:tried to|unable to) allocate (\d+(?:\.\d+)?) ?(bytes|[KMGTPE]i?B)", re.IGNORECASE)
# The allocator of mps writes MB for MiB (format_size in aten/src/ATen/mps/MPSAllocator.mm).
_UNITS = {"bytes": 1} | {f"{prefix}{i}b": 2 ** (10 * n) for n, prefix in enumerate("kmgtpe", start=1) for i in ("i", "")}
_NAMED = 2  # categories and tensors named in the sentence, at most
LEAST_SHARE = 0.1  # share of the capacity from which fragments or other processes are mentioned
GREW = 1.05  # ratio to the example batch from which a batch counts as larger
CONTEXT_BYTES = 2**30  # GPU memory that this process holds outside PyTorch's allocator, at most
SMALLER = "a smaller --micro-batch with more --accumulate: same global batch, less memory"


@dataclass(frozen=True)
class MemoryView:
    """The state of a run when memory runs out. Every field is optional.

    Attributes:
        forecast: memory forecast of this strategy on this device.
        measured_peak_bytes: peak bytes of tensors up to the failure.
        example: the job's example batch of one micro-batch.
        batch: micro-batches of the step that failed.
        strategy: strategy of the run.
        device: device of the run.
    """

    forecast: MemoryForecast | None = None
    measured_peak_bytes: int | None = None
    example: object = None
    batch: Sequence[object] = ()
    strategy: Strategy | None = None
    device: torch.device | None = None


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether this error, or one of its causes, is an out-of-memory error."""
    return _source(error) is not None


def explain(error: BaseException, view: MemoryView | None = None, *, where: str = "the job") -> GpuwiseError:
    """The error to raise in place of an out-of-memory error.

    Arguments:
        error: the out-of-memory error.
        view: the state of the run.
        where: the failed part, such as "gpt2 in step 3 (train.py:12)".
    """
    view = view or MemoryView()
    capacity_bytes = view.forecast.capacity_bytes if view.forecast else None
    grown = list(_grown(view))
    fragments_bytes, others_bytes = _on_the_gpu(view.device)
    least_bytes = LEAST_SHARE * (capacity_bytes or 0)

    asked_bytes = _asked_bytes(_source(error) or error)
    sentences = [
        f"{where} ran out of memory"
        + (f" asking for {format_bytes(asked_bytes)} more" if asked_bytes else "")
        + (f"; {_device(view)} has {format_bytes(capacity_bytes)}." if capacity_bytes else ".")
    ]
    if view.forecast:
        sentences.append(_expected(view.forecast))
    if view.measured_peak_bytes:
        sentences.append(f"It had reached {format_bytes(view.measured_peak_bytes)}.")
    sentences += [f"{grew[:1].upper()}{grew[1:]}." for grew in grown[:_NAMED]]
    if others_bytes > max(least_bytes, CONTEXT_BYTES):
        sentences.append(f"Other processes hold {format_bytes(others_bytes)} of the device.")
    fragmented = fragments_bytes > max(least_bytes, 1)
    if fragmented:
        sentences.append(f"{format_bytes(fragments_bytes)} are reserved and in no tensor: fragments.")

    ways = []
    if grown:
        ways.append("batches no larger than the job's example, or a forecast with their size (--seq-len, --image-size)")
    if fragmented:
        assert view.device is not None
        setting = backend_of(view.device).against_fragments
        ways += [f"{setting} in the environment"] if setting else []
    return DoesNotFitError(" ".join(sentences), [*ways, *_ways_out(view)])


def _source(error: BaseException | None) -> BaseException | None:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        text = message_of(error).lower()
        if isinstance(error, MemoryError | torch.OutOfMemoryError):
            return error
        if isinstance(error, RuntimeError | OSError) and any(sign in text for sign in _SIGNS):
            return error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None


def _asked_bytes(error: BaseException) -> int | None:
    match = _TRIED.search(str(error))
    return int(float(match[1]) * _UNITS[match[2].lower()]) if match else None


def _device(view: MemoryView) -> str:
    return str(view.device) if view.device is not None and view.device.type != "cpu" else "this machine"


def _expected(forecast: MemoryForecast) -> str:
    largest = sorted(forecast.by_category.items(), key=lambda item: -item[1])[:_NAMED]
    words = " and ".join(f"{name.replace('_', ' ')} {format_bytes(value)}" for name, value in largest if value)
    return f"The forecast's peak is {format_bytes(forecast.peak_allocated_bytes)}" + (
        f", most of it {words}." if words else "."
    )


def _grown(view: MemoryView) -> Iterator[str]:
    """Describes tensors of a micro-batch that are larger than in the example batch, largest growth first."""
    examples = dict(named_tensors(view.example))
    largest: dict[str, torch.Tensor] = {}
    for name, tensor in (named for micro_batch in view.batch for named in named_tensors(micro_batch)):
        if name in examples and tensor.numel() > largest.get(name, examples[name]).numel():
            largest[name] = tensor
    grown = [(tensor.numel() / max(1, examples[name].numel()), name) for name, tensor in largest.items()]
    for factor, name in sorted(grown, reverse=True):
        if factor > GREW:
            yield f"{name} is {tuple(largest[name].shape)}, {factor:.3g} times the example's {tuple(examples[name].shape)}"


def _on_the_gpu(device: torch.device | None) -> tuple[int, int]:
    """Bytes lost to fragmentation, and bytes used outside this process's allocator."""
    if device is None:
        return 0, 0
    backend = backend_of(device)
    try:
        total, reserved_bytes, allocated_bytes = (
            backend.free_and_total_bytes(),
            backend.reserved_bytes(),
            backend.allocated_bytes(),
        )
    except RuntimeError:  # a failed device may not answer
        return 0, 0
    if total is None or reserved_bytes is None or allocated_bytes is None:
        return 0, 0
    free_bytes, total_bytes = total
    return reserved_bytes - allocated_bytes, total_bytes - free_bytes - reserved_bytes


def _ways_out(view: MemoryView) -> list[str]:
    """Remedies for the largest categories of memory, without those that the strategy already uses."""
    strategy, forecast = view.strategy or Strategy(micro_batch=2), view.forecast
    smaller = [SMALLER] if strategy.micro_batch > 1 else []
    recompute = ["--recompute full"] if strategy.recompute != "full" else []
    offload = [f"--offload {what}" for what in ("optimizer", "parameters") if strategy.offload == "none"]
    eight_bit = ["--optimizer adamw-8bit"] if strategy.optimizer not in ("adamw-8bit", "adamw-4bit") else []
    lighter = ["--adapter lora"] if strategy.adapter == "none" else []
    in_backward = ["--optimizer-in-backward"] if strategy.accumulation == 1 and not strategy.optimizer_in_backward else []
    by_category = {
        "optimizer_state": [*eight_bit, *offload[:1], *lighter],
        "gradient": [*in_backward, *offload[:1], *lighter],
        "parameter": [*offload[1:], *lighter],
    }
    largest = max(forecast.by_category, key=forecast.by_category.__getitem__, default="") if forecast else ""
    return [*by_category.get(largest, []), *smaller, *recompute, *lighter]
