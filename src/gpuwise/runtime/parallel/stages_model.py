"""Cuts a job's model into the pipeline stages of one rank."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import nn

from gpuwise.errors import GpuwiseError, InputError, UnsupportedError, message_of
from gpuwise.job.blocks import repeated_blocks
from gpuwise.runtime.parallel.stages_absent import WAYS, AbsentTensor
from gpuwise.runtime.parallel.stages_plan import DryModel


def paths_of_blocks(model: nn.Module) -> list[str]:
    """Paths of the repeated blocks. Raises InputError for a model without."""
    blocks = {id(block) for block in repeated_blocks(model)}
    paths = [path for path, module in model.named_modules() if id(module) in blocks]
    if not paths:
        raise InputError(
            f"{type(model).__name__} has no repeated blocks at which to cut it into pipeline stages.",
            ["group the layers in a torch.nn.ModuleList or Sequential", *WAYS],
        )
    return paths


def paths_of_edges(model: nn.Module, blocks: list[str]) -> list[str]:
    """Paths of the outermost modules with parameters that neither are blocks, nor contain or lie in one."""
    around = {""} | {path.rsplit(".", depth)[0] for path in blocks for depth in range(1, path.count(".") + 1)}
    edges: list[str] = []
    for path, module in model.named_modules():
        if path in around or any(path == block or path.startswith(f"{block}.") for block in (*blocks, *edges)):
            continue
        if any(True for _ in module.parameters()):
            edges.append(path)
    return edges


def dry_model(
    model: nn.Module, blocks: list[str], edges: list[str], *, device: torch.device, dtype: torch.dtype | None = None
) -> DryModel:
    """The model for dry runs. Raises UnsupportedError for a model that cannot be copied."""
    try:
        return DryModel(model, blocks=blocks, edges=edges, device=device, dtype=dtype)
    except GpuwiseError:
        raise
    except Exception as error:  # modules may hold anything
        raise UnsupportedError(
            f"{type(model).__name__} cannot be copied, as pipeline stages need: {type(error).__name__}: {message_of(error)}.",
            WAYS,
        ) from error


def names_of_tensors(model: nn.Module, dry: DryModel) -> list[tuple[str, ...]]:
    """Parameters, and buffers that depend on parameters, each with all of its names."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    absent = {name for name, buffer in dry.model.named_buffers(remove_duplicate=False) if isinstance(buffer, AbsentTensor)}
    for name, buffer in model.named_buffers(remove_duplicate=False):
        if name in absent:
            names[id(buffer)].append(name)
    return [tuple(aliases) for aliases in names.values()]
