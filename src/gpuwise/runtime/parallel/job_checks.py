"""What a mesh requires of a job, checked on shapes alone before ranks are started: blocks, heads, experts, sequences."""

from __future__ import annotations

from torch import nn

from gpuwise.errors import JobError
from gpuwise.job import Job
from gpuwise.job.batches import checked_batch, map_tensors
from gpuwise.job.job import meta_model
from gpuwise.job.parallel import COLWISE, TensorPlan, check_sizes, features, plan_of_config, plan_of_job
from gpuwise.runtime.parallel.context import check_length
from gpuwise.runtime.parallel.experts import check_experts
from gpuwise.runtime.parallel.forward_pass import ForwardPass, observed
from gpuwise.runtime.parallel.probe import SAMPLES, cut_copy
from gpuwise.runtime.parallel.stages_cut import check_blocks
from gpuwise.runtime.parallel.stages_model import paths_of_blocks
from gpuwise.runtime.parallel.tensor_plan import check_heads, derived_plan, linear_pairs
from gpuwise.runtime.parallel.tensor_styles import check_parts
from gpuwise.strategy import Strategy


def check_job(job: Job, strategy: Strategy) -> None:
    """Raises what each rank of the strategy's mesh would raise of this job, as far as shapes show it.

    A model that is not built, or does not run, on PyTorch's device without memory (`meta`) is left to the ranks.

    Raises InputError where an axis does not divide what it splits, JobError for a tensor-parallel plan that does not fit the
    model, UnsupportedError for a model that has nothing to split.
    """
    mesh, parallelism = strategy.mesh, strategy.parallelism
    if mesh.cp > 1:
        check_length(job.seq_len, mesh.cp, job.name or "the job")
    if mesh.tp > 1 and parallelism.sequence_parallel and job.seq_len is not None:
        check_parts(job.seq_len // mesh.cp, mesh.tp)
    if max(mesh.tp, mesh.pp, mesh.ep) == 1:
        return
    try:
        model = meta_model(job)
    except JobError:
        return
    if mesh.pp > 1:
        check_blocks(len(paths_of_blocks(model)), mesh.pp * parallelism.stages_per_rank)
    if mesh.ep > 1:
        check_experts(model, mesh.ep)
    if mesh.tp > 1:
        _check_plan(job, model, mesh.tp)


def _check_plan(job: Job, model: nn.Module, degree: int) -> None:
    if job.tensor_parallel_plan is not None:
        plan: TensorPlan | None = plan_of_job(job.tensor_parallel_plan, model)
    else:
        plan = plan_of_config(model)
    if plan is not None:
        check_sizes(plan, model, degree)
    cut = cut_copy(model)
    events = _forward_pass(job, cut)
    if events is None:
        return
    if plan is None:
        derived_plan(cut, events, degree)
        return
    for pair in linear_pairs(events):
        if not pair.fused and all(plan.words.get(path) == COLWISE for path in pair.columns):
            check_heads([features(cut.get_submodule(path))[1] for path in pair.columns], pair, degree)


def _forward_pass(job: Job, model: nn.Module) -> ForwardPass | None:
    """One forward pass on shapes alone; None where that fails, which need not mean anything."""
    assert job.loss is not None
    try:
        batch = map_tensors(checked_batch(job, SAMPLES), lambda tensor: tensor.to("meta"))
        with observed(model) as events:
            job.loss(model, batch)
    except Exception:  # the values of a batch decide, or an operator has no rule for shapes
        return None
    return events
