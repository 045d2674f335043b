"""Which operations of a pass are those of shared experts, which engines run beside the routed ones."""

from __future__ import annotations

import numpy as np

from gpuwise.serving.sharing import has_experts
from gpuwise.trace.trace import Trace

SHARED = "shared"  # beginning of the modules' names in Transformers: shared_expert, shared_experts, shared_mlp


def shared_and_routed(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """Operations of shared experts, and those of other modules beside them: the router and the experts that it chooses from.

    Neither needs what the other computes. Both are empty for models without experts. The names of their modules tell
    them apart, for a trace has no edges.
    """
    modules, rows = trace.modules, trace.sequence.operation
    none = np.zeros(0, dtype=np.int64)
    if not has_experts(trace.operations):
        return none, none
    paths = [modules[each].split(".") for each in trace.sequence.module.tolist()]
    depths = [next((depth for depth, name in enumerate(path) if name.startswith(SHARED)), None) for path in paths]
    layers = {tuple(path[:depth]) for path, depth in zip(paths, depths, strict=True) if depth is not None}
    shared = np.array([depth is not None for depth in depths], dtype=bool)
    inside = np.array([any(tuple(path[:end]) in layers for end in range(1, len(path))) for path in paths], dtype=bool)
    return rows[shared], rows[inside & ~shared]
