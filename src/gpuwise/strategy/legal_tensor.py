"""What tensor, context and expert parallelism exclude: rows of the table of gpuwise.strategy.legal."""

from __future__ import annotations

from gpuwise.errors import UnsupportedError
from gpuwise.strategy.exclusion import Exclusion

_SHARDS = "--mesh dp_shard=N"
_OF_WHOLE_MATRICES = ("adafactor", "muon", "adamw-8bit", "adamw-4bit")  # read whole matrices, or blocks of them

TENSOR_EXCLUSIONS: tuple[Exclusion, ...] = (
    Exclusion(
        lambda s, step: s.mesh.tp > 1 and s.adapter != "none",
        "tensor parallelism does not split low-rank adapters so far.",
        ("--adapter none", _SHARDS),
        UnsupportedError,
    ),
    Exclusion(
        lambda s, step: s.mesh.tp > 1 and s.precision == "fp8",
        "tensor parallelism does not split fp8 products so far: their scales are those of whole tensors.",
        ("--precision amp-bf16", _SHARDS),
        UnsupportedError,
        forward=True,
    ),
    Exclusion(
        lambda s, step: s.mesh.tp > 1 and s.optimizer in _OF_WHOLE_MATRICES,
        "{optimizer} reads whole matrices or blocks of them, which tensor parallelism splits.",
        ("--optimizer adamw", _SHARDS),
        UnsupportedError,
    ),
    # A compiled block's backward pass hands plain gradients to DTensor's sum of its output (PyTorch 2.13).
    Exclusion(
        lambda s, step: s.mesh.tp > 1 and s.compile and not s.parallelism.sequence_parallel,
        "PyTorch does not compile the backward pass of blocks that sum whole outputs over tensor-parallel ranks.",
        ("--sequence-parallel, which compiles", "leave out --compile"),
        UnsupportedError,
        forward=True,
    ),
    # AssertionError in AOTAutograd: a device mesh among the tensors saved for backward (PyTorch 2.13).
    Exclusion(
        lambda s, step: s.mesh.tp > 1 and s.compile and s.recompute != "none",
        "PyTorch does not compile tensor-parallel blocks that are computed again in the backward pass.",
        ("--recompute none", "leave out --compile"),
        UnsupportedError,
    ),
    Exclusion(
        lambda s, step: s.mesh.dp_shard % s.mesh.ep != 0,
        "ranks of expert parallelism are among those of dp_shard, so ep divides dp_shard.",
        ("--mesh dp_shard=N,ep=N",),
        forward=True,
    ),
    Exclusion(
        lambda s, step: s.mesh.ep > 1 and max(s.mesh.tp, s.mesh.cp) > 1,
        "expert parallelism has not been compared with one device beside tensor or context parallelism so far.",
        ("--mesh dp_shard=N,ep=N", "leave out ep"),
        UnsupportedError,
        forward=True,
    ),
    Exclusion(
        lambda s, step: step.priced and s.mesh.ep > 1 and s.mesh.pp > 1,
        "pipeline stages with split experts are not forecast so far; train runs them.",
        ("--mesh dp_shard=N,ep=N", "leave out ep"),
        UnsupportedError,
        forward=True,
    ),
    Exclusion(
        lambda s, step: s.mesh.ep > 1 and (s.adapter != "none" or s.precision == "fp8" or s.compile),
        "expert parallelism has not been compared with one device with adapters, fp8 products or torch.compile.",
        ("leave out ep",),
        UnsupportedError,
    ),
    # Ranks of cp shard parameters, as those of dp_shard do.
    Exclusion(
        lambda s, step: s.mesh.cp > 1 and s.optimizer in _OF_WHOLE_MATRICES,
        "{optimizer} has not been compared with one device where context-parallel ranks shard the parameters.",
        ("--optimizer adamw", "--mesh dp=N"),
        UnsupportedError,
    ),
    Exclusion(
        lambda s, step: s.mesh.cp > 1 and (s.adapter == "qlora" or s.precision == "fp8"),
        "context-parallel ranks shard the parameters, which weights in 4 bits and fp8 products do not take so far.",
        ("--precision amp-bf16", "--adapter lora"),
        UnsupportedError,
        forward=True,
    ),
    Exclusion(
        lambda s, step: s.mesh.cp > 1 and s.compile,
        "context parallelism changes attention while it runs, which torch.compile does not see.",
        ("leave out --compile",),
        UnsupportedError,
        forward=True,
    ),
)
