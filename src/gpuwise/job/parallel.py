"""Tensor-parallel plans: which module of a model is split how, in the words of Hugging Face's plans."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwise.errors import InputError, JobError

if TYPE_CHECKING:
    from torch import nn

# What a module of a plan does with its weight, input and output.
COLWISE = "colwise"  # output features split; the output stays split
ROWWISE = "rowwise"  # input features split, as a colwise module leaves them; the output is summed
COLWISE_GATHERED = "colwise_gather_output"  # output features split; the output is gathered
ROWWISE_SPLIT = "rowwise_split_input"  # input features split; takes a whole input and cuts it
EMBEDDING = "embedding_rowwise"  # rows of an embedding split; the output is summed
REPLICATED = "replicate"  # whole on every rank
REPLICATED_SUMMED = "replicated_with_grad_allreduce"  # whole on every rank, applied to a split input: gradients are summed
WORDS = (COLWISE, ROWWISE, COLWISE_GATHERED, ROWWISE_SPLIT, EMBEDDING, REPLICATED, REPLICATED_SUMMED)

# Older and shorter words of Hugging Face's plans.
_SAME = {"colwise_rep": COLWISE_GATHERED, "rowwise_rep": ROWWISE_SPLIT, "replicated": REPLICATED, "auto": REPLICATED}
# Words for experts held in one tensor; such modules stay whole under tensor parallelism alone.
_OF_EXPERTS = ("packed_colwise", "packed_rowwise", "moe_tp_experts", "grouped_gemm", "ep_router", "local", "gather")


@dataclass(frozen=True)
class PlanRemark:
    """Why modules are split in a less efficient way than usual, or not at all.

    Attributes:
        modules: paths of the modules; none for the whole plan.
        reason: what follows "q, k, v: ".
    """

    modules: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class TensorPlan:
    """How each module of a model is split over the tensor-parallel ranks. A module that is not named stays whole.

    Attributes:
        words: module path -> one of WORDS.
        source: where the plan comes from: as in a note: by the plan of the job, of the config, or derived.
        remarks: on modules that are split in a less efficient way than usual. Default none.
    """

    words: Mapping[str, str]
    source: str
    remarks: tuple[PlanRemark, ...] = ()


def check_plan(plan: object) -> None:
    """Raises JobError unless the plan is a mapping of module paths (with * for any number) to WORDS."""
    if plan is None:
        return
    if not isinstance(plan, Mapping) or not plan:
        raise JobError(
            f"a job's tensor_parallel_plan must be a dict of module paths and words, got {plan!r}.",
            ['{"layers.*.attention.q": "colwise", "layers.*.attention.out": "rowwise"}', f"words: {', '.join(WORDS)}"],
        )
    for path, word in plan.items():
        if not isinstance(path, str) or word not in (*WORDS, *_SAME):
            raise JobError(
                f"a job's tensor_parallel_plan says {word!r} of {path!r}, which is no word of a plan.",
                [f"words: {', '.join(WORDS)}"],
            )


def plan_of_job(plan: Mapping[str, str], model: nn.Module) -> TensorPlan:
    """The job's own plan, by the modules of the model. Raises JobError for a path that names no module."""
    words: dict[str, str] = {}
    for pattern, word in plan.items():
        paths = _matching(pattern, model)
        if not paths:
            raise JobError(
                f"the job's tensor_parallel_plan names {pattern!r}, but the model has no such module.",
                [f"its modules: {', '.join(_parametrised(model)[:6])}, ...", "* stands for any one name between two dots"],
            )
        words |= dict.fromkeys(paths, _SAME.get(word, word))
    return TensorPlan(words, "by the plan of the job")


def plan_of_config(model: nn.Module) -> TensorPlan | None:
    """The plan that Hugging Face's config has for its model; None for other models and for families without one."""
    config = getattr(model, "config", None)
    base = getattr(config, "base_model_tp_plan", None)
    if not isinstance(base, Mapping) or not base:
        return None
    prefix = getattr(model, "base_model_prefix", "")
    inner = f"{prefix}." if prefix and hasattr(model, prefix) else ""
    named = {f"{inner}{pattern}": word for pattern, word in base.items()} | dict(getattr(model, "_tp_plan", None) or {})
    words: dict[str, str] = {}
    whole: list[str] = []
    for pattern, word in named.items():
        if word in _OF_EXPERTS or word not in (*WORDS, *_SAME):
            whole.append(pattern)
            continue
        words |= dict.fromkeys(_matching(pattern, model), _SAME.get(word, word))
    left = PlanRemark(tuple(whole), "whole on every rank, experts in one tensor are not split")
    return TensorPlan(words, "by the plan of the model's config", remarks=(left,) if whole else ()) if words else None


def check_sizes(plan: TensorPlan, model: nn.Module, degree: int) -> None:
    """Raises InputError where the degree of tensor parallelism does not divide what the plan splits."""
    for path, word in plan.words.items():
        module = model.get_submodule(path)
        weight = getattr(module, "weight", None)
        if word in (REPLICATED, REPLICATED_SUMMED):
            continue
        if weight is None or weight.dim() != 2:
            raise JobError(
                f"the tensor-parallel plan splits {path!r}, a {type(module).__name__}; only linear layers and embeddings "
                "can be split.",
                [f'"{path}": "{REPLICATED}" in the Job\'s tensor_parallel_plan'],
            )
        inputs, outputs = features(module)
        size, name = (outputs, "outputs") if word in (COLWISE, COLWISE_GATHERED) else (inputs, "inputs")
        if size % degree:
            raise InputError(
                f"tensor parallelism over {degree} devices does not divide the {size:,} {name} of {path!r}.",
                [f"--mesh tp={_largest_divisor(size, degree)}", "leave the module whole in the Job's tensor_parallel_plan"],
            )


def features(module: nn.Module) -> tuple[int, int]:
    """Input and output features of a linear layer; rows and width of an embedding."""
    from torch import nn

    rows, columns = module.weight.shape  # type: ignore[misc]
    # transformers' Conv1D holds its weight as (inputs, outputs); so does an embedding, whose inputs are its rows.
    return (rows, columns) if is_transposed(module) or isinstance(module, nn.Embedding) else (columns, rows)


def is_transposed(module: nn.Module) -> bool:
    """Whether this is a linear layer whose weight is (inputs, outputs), transformers' Conv1D."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def _largest_divisor(size: int, below: int) -> int:
    return next(n for n in range(below, 0, -1) if size % n == 0)


def _matching(pattern: str, model: nn.Module) -> list[str]:
    name = re.compile("".join("[^.]+" if part == "*" else re.escape(part) for part in re.split(r"(\*)", pattern)))
    return [path for path, _ in model.named_modules() if path and name.fullmatch(path)]


def _parametrised(model: nn.Module) -> list[str]:
    return [path for path, module in model.named_modules() if path and any(True for _ in module.parameters(recurse=False))]
