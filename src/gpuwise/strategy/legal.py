"""Techniques that exclude each other: one table, with the reason and the ways out of each row.

Every verb checks the user's settings against it before anything is traced; a search checks each strategy it tries, and
`runtime.build` the one it builds. A technique that does not go with another gets a row here and is refused by all of them.
"""

from __future__ import annotations

from gpuwise.errors import PrecisionError, UnsupportedError
from gpuwise.strategy.exclusion import Exclusion, StepFacts
from gpuwise.strategy.kernels import kernels_of
from gpuwise.strategy.legal_pipeline import PIPELINE_EXCLUSIONS
from gpuwise.strategy.legal_tensor import TENSOR_EXCLUSIONS
from gpuwise.strategy.pipeline import fewest_micro_batches
from gpuwise.strategy.strategy import Strategy

CLOSURE_WAYS = ("--precision amp-bf16 or fp32", "a Job without clip_norm")
_ONE_DEVICE = "one device: --on CHIP:1"
_FP16_WAYS = ("--precision amp-fp16", "--precision amp-bf16")
_REPLICAS = "--mesh dp=N, which keeps a copy on each device"


def _sharded(strategy: Strategy) -> bool:
    """Whether fully_shard holds the parameters; of replicas that are split or cut, too (runtime.parallel.order)."""
    mesh = strategy.mesh
    return mesh.dp_shard * mesh.cp > 1 or (mesh.dp_replicate > 1 and mesh.tp * mesh.pp > 1)


def _splits_layers(strategy: Strategy) -> bool:
    return max(strategy.mesh.tp, strategy.mesh.pp, strategy.mesh.cp, strategy.mesh.ep) > 1


EXCLUSIONS: tuple[Exclusion, ...] = (
    # Of one device.
    Exclusion(
        lambda s, step: s.offload != "none" and step.on_cpu,
        "offload moves memory from a device to its host, and a CPU is the host.",
        ("--offload none",),
        forward=True,
    ),
    Exclusion(
        lambda s, step: s.adapter == "qlora" and s.precision == "fp8",
        "weights held in 4 bits are multiplied in 16 bits, not in fp8.",
        ("--precision amp-bf16", "--adapter lora"),
        forward=True,
    ),
    Exclusion(
        lambda s, step: s.optimizer_in_backward and s.accumulation > 1,
        "an optimizer in backward updates after every micro-batch, so nothing can be accumulated.",
        ("--accumulate 1", "leave out --optimizer-in-backward"),
    ),
    Exclusion(
        lambda s, step: s.optimizer_in_backward and s.scales_loss,
        "an optimizer in backward cannot scale fp16 gradients: whether to skip a step is known only once "
        "all of them are there.",
        ("--precision amp-bf16", "leave out --optimizer-in-backward"),
    ),
    Exclusion(
        lambda s, step: s.optimizer_in_backward and s.offload != "none",
        "offload frees each gradient as soon as it is there, so an optimizer in backward adds nothing.",
        ("leave out --optimizer-in-backward", "--offload none"),
    ),
    Exclusion(
        lambda s, step: s.keep_gradients and (s.optimizer_in_backward or s.offload != "none"),
        "gradients cannot be kept where each is freed as soon as it was used.",
        ("leave out --keep-gradients",),
    ),
    Exclusion(
        lambda s, step: s.optimizer_in_backward and step.clips,
        "gradients cannot be clipped together where each is used and freed as it comes.",
        ("leave out --optimizer-in-backward", "a Job without clip_norm"),
    ),
    Exclusion(
        lambda s, step: s.optimizer_in_backward and step.skips,
        "an optimizer in backward has updated parameters before the loss is known: no step can be skipped.",
        ("leave out --optimizer-in-backward", "--on-nonfinite stop"),
    ),
    Exclusion(
        lambda s, step: s.offload == "parameters" and step.averages,
        "the average of the parameters stays on the device, which offloaded parameters are to leave.",
        ("--offload optimizer", "a Job without ema_decay"),
    ),
    # fp16: the optimizer updates fp32 master weights (gpuwise.runtime.build.master_weights).
    Exclusion(
        lambda s, step: s.precision == "fp16" and (step.own_step or s.offload != "none" or s.keep_gradients),
        "fp16 training moves gradients to fp32 master weights, which does not go with offload, kept gradients or a step of the "
        "job's own.",
        _FP16_WAYS,
        UnsupportedError,
    ),
    Exclusion(
        lambda s, step: s.precision == "fp16" and s.adapter != "none",
        "adapters are trained in fp32, so that fp16 training has no master weights to add.",
        _FP16_WAYS,
    ),
    Exclusion(
        lambda s, step: s.precision == "fp16" and step.averages,
        "the average of parameters is one of fp16 numbers, in which its changes are rounded away.",
        _FP16_WAYS,
        UnsupportedError,
    ),
    Exclusion(
        lambda s, step: s.precision == "fp16" and s.mesh.devices > 1,
        "fp16 training with fp32 master weights runs on one device so far; amp-fp16 keeps fp32 weights on any mesh.",
        (_FP16_WAYS[0], _ONE_DEVICE),
        UnsupportedError,
    ),
    # Of a job that updates inside a step of its own.
    Exclusion(
        lambda s, step: step.own_step and s.accumulation > 1,
        "{own}: it updates {where}, so gpuwise cannot accumulate gradients before.",
        ("--accumulate 1, with a larger --micro-batch",),
        UnsupportedError,
    ),
    Exclusion(
        lambda s, step: step.own_step and s.optimizer_in_backward,
        "{own}: it updates {where}, not inside backward.",
        ("leave out --optimizer-in-backward",),
        UnsupportedError,
    ),
    Exclusion(
        lambda s, step: step.own_step and s.keep_gradients,
        "{own}: it clears gradients itself.",
        ("leave out --keep-gradients",),
        UnsupportedError,
    ),
    Exclusion(
        lambda s, step: step.own_step and s.offload != "none",
        "{own}: its updates are not moved to the host.",
        ("--offload none",),
        UnsupportedError,
    ),
    Exclusion(
        lambda s, step: step.own_step and step.skips,
        "{job} updates inside its own step, before the loss is known: none can be skipped.",
        ("--on-nonfinite stop", "skip the update in the job's own step"),
        UnsupportedError,
    ),
    Exclusion(
        lambda s, step: step.closure and step.clips,
        "{own}: gradients cannot be clipped inside a closure.",
        CLOSURE_WAYS[1:],
        UnsupportedError,
    ),
    Exclusion(
        lambda s, step: step.closure and s.scales_loss,
        "{own}: fp16 gradients cannot be scaled inside a closure.",
        CLOSURE_WAYS[:1],
        PrecisionError,
    ),
    # Of several devices, whose step cannot be forecast so far.
    Exclusion(
        lambda s, step: step.priced and s.mode == "infer" and (_sharded(s) or _splits_layers(s)),
        "a forward pass over sharded parameters, or parts of layers or stages, is not forecast so far.",
        ("use --mesh dp=N",),
        UnsupportedError,
        forward=True,
    ),
    Exclusion(
        lambda s, step: step.priced and s.compile and _splits_layers(s),
        "a compiled step is so far forecast only with whole layers: collectives inside blocks cut its graphs.",
        ("leave out --compile", "--mesh dp=N or dp_shard=N"),
        UnsupportedError,
    ),
    *TENSOR_EXCLUSIONS,
    *PIPELINE_EXCLUSIONS,
    Exclusion(
        lambda s, step: step.own_step and s.mesh.devices > 1,
        "{own}: it calls backward itself, so its gradients would not be averaged over devices.",
        (_ONE_DEVICE,),
        UnsupportedError,
    ),
    Exclusion(
        lambda s, step: s.offload != "none" and s.mesh.devices > 1,
        "offload moves each gradient to the host as backward makes it, before devices have averaged it.",
        ("--offload none", _ONE_DEVICE),
        UnsupportedError,
    ),
    Exclusion(
        lambda s, step: s.optimizer_in_backward and s.mesh.devices > 1,
        "an optimizer in backward uses each gradient as backward makes it, before devices have averaged it.",
        ("leave out --optimizer-in-backward", _ONE_DEVICE),
        UnsupportedError,
    ),
    Exclusion(
        lambda s, step: s.adapter == "qlora" and _sharded(s),
        "QLoRA packs weights in 4 bits, with scales beside them that sharding (FSDP2) does not split with them.",
        ("--adapter lora", _REPLICAS),
        UnsupportedError,
    ),
    Exclusion(
        lambda s, step: s.precision == "fp8" and _sharded(s),
        "fp8 products of sharded parameters have not been compared with those of one device so far.",
        ("--precision amp-bf16", _REPLICAS),
        UnsupportedError,
    ),
    # fully_shard refuses parameters that are not contiguous (torch/distributed/fsdp/_fully_shard/_fsdp_param.py).
    Exclusion(
        lambda s, step: not step.priced and s.channels_last and _sharded(s),
        "sharded parameters (FSDP2) lie in the usual layout, not with channels last.",
        ("leave out --channels-last", _REPLICAS),
        UnsupportedError,
    ),
    # The same file refuses parameters without dimensions, such as logit_scale of CLIP.
    Exclusion(
        lambda s, step: step.scalar_parameter and _sharded(s),
        "a parameter of {job} is a single number without dimensions, which sharding (FSDP2) cannot split.",
        ("torch.nn.Parameter of shape (1,) in the model", _REPLICAS),
        UnsupportedError,
    ),
    # In-place powers of a norm, which Adafactor takes, need another placement than they have (PyTorch 2.13).
    Exclusion(
        lambda s, step: s.optimizer == "adafactor" and _sharded(s),
        "adafactor does not run on sharded parameters: PyTorch has no rule for its norms there.",
        ("--mesh dp=N", "--optimizer adamw"),
        UnsupportedError,
    ),
    Exclusion(
        lambda s, step: s.optimizer == "muon" and _sharded(s),
        "muon multiplies whole matrices, of which each device has some rows.",
        ("--mesh dp=N", "--optimizer adamw"),
        UnsupportedError,
    ),
    # aten._fused_sgd_ has no sharding strategy (torch/distributed/tensor/_ops/_pointwise_ops.py, PyTorch 2.13).
    Exclusion(
        lambda s, step: (
            s.optimizer in ("sgd", "momentum") and s.optimizer_kernels == "fused" and (_sharded(s) or s.mesh.tp > 1)
        ),
        "{optimizer} has no fused kernels for sharded parameters.",
        ("--optimizer-kernels foreach",),
        UnsupportedError,
    ),
)


def check_techniques(strategy: Strategy, step: StepFacts | None = None) -> None:
    """Raises the error of the first row that applies; InputError for kernels that the named optimizer has not or has wrong."""
    step = step or StepFacts()
    for row in EXCLUSIONS:
        if (row.forward or strategy.mode == "train") and row.applies(strategy, step):
            raise row.error(_text(row.reason, strategy, step), row.ways_out)
    if strategy.mode == "train" and strategy.optimizer is not None and strategy.optimizer_kernels is not None:
        kernels_of(
            strategy.optimizer,
            strategy.optimizer_kernels,
            on_cpu=step.on_cpu or strategy.offload != "none",
            in_16_bits=strategy.precision == "bf16",
            scaled=strategy.scales_loss,
        )


def _text(reason: str, strategy: Strategy, step: StepFacts) -> str:
    own = f"the optimizer of {step.job} evaluates the loss itself" if step.closure else f"{step.job} has a step of its own"
    where = "within its step" if step.closure else "where that says"
    parallelism, ranks = strategy.parallelism, strategy.mesh.pp
    return reason.format(
        job=step.job,
        own=own,
        where=where,
        optimizer=strategy.optimizer,
        schedule=parallelism.pipeline_schedule,
        stages=parallelism.stages_per_rank,
        accumulation=strategy.accumulation,
        ranks=ranks,
        fewest=fewest_micro_batches(parallelism, ranks),
    )
