"""What other tools say a training step needs, each asked in the way its documentation shows. All in bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from gpuwise.job import Job, checked_batch
from gpuwise.job.torchvision_cpu import make_importable
from gpuwise.runtime.build.program import build
from gpuwise.strategy import Strategy

ACCELERATE_DTYPE = {"fp32": "float32", "tf32": "float32", "amp-fp16": "float16", "amp-bf16": "bfloat16", "bf16": "bfloat16"}


def accelerate_bytes(model: nn.Module, precision: str) -> int:
    """accelerate estimate-memory: its "Training using Adam" column. It knows sizes of weights only."""
    make_importable()
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    total, _ = calculate_maximum_sizes(model)
    return int(max(estimate_training_usage(int(total), ACCELERATE_DTYPE[precision]).values()))


def deepspeed_bytes(model: nn.Module, devices: int = 1, *, shards_parameters: bool = False) -> int:
    """DeepSpeed's estimate_zero2_model_states_mem_needs (estimate_zero3_… where parameters are sharded), no offload.

    The formulas of deepspeed/runtime/zero/stage_1_and_2.py and stage3.py, 0.19.8: whole fp16 parameters or the fp32
    largest layer, and 18 bytes a parameter of one device; written out here, so that the package need not be installed.
    """
    parameters = sum({id(p): p.numel() for p in model.parameters()}.values())
    if not shards_parameters:
        return 2 * parameters + 18 * parameters // devices
    layer = max(sum(p.numel() for p in module.parameters(recurse=False)) for module in model.modules())
    return 4 * layer + 18 * parameters // devices


def memtracker_bytes(job: Job, strategy: Strategy) -> int | None:
    """torch.distributed._tools.MemTracker over two steps under fake tensors, on the CPU; None where it fails."""
    from torch.distributed._tools.mem_tracker import MemTracker

    tracker: Any = MemTracker()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            program = build(job, strategy, "cpu")
            assert program.optimizer is not None
            tracker.track_external(program.model, program.optimizer)
            with tracker:
                _steps(program, lambda: checked_batch(job, strategy.micro_batch), tracker)
    except Exception:  # of a peer: that it cannot is the result
        return None
    peaks = tracker.get_tracker_snapshot("peak")
    return max(int(kinds["Total"]) for kinds in peaks.values())


def _steps(program: Any, batch: Callable[[], Any], tracker: Any) -> None:
    for _ in range(2):
        for _ in range(program.strategy.accumulation):
            program.forward_backward(batch())
            tracker.reset_mod_stats()  # it asks for this between passes
        program.update()
