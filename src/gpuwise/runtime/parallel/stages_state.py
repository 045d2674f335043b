"""The state dict of a rank's pipeline stages, under the names of the job's model."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from gpuwise.runtime.parallel.stages_cut import Cut


def stages_state(
    stages: Iterable[tuple[nn.Module, int]], cut: Cut, *, prefix: str = "", keep_vars: bool = False
) -> dict[str, object]:
    """The parameters and buffers of these stages.

    A stage has copies of all buffers that depend on no parameter. Those in modules whose parameters other stages have (the
    running mean of a normalisation) stay as they began, and are left out. Of what several stages have, the first one's counts.

    Arguments:
        stages: the model of each stage, and its number.
        cut: of the model.
        prefix, keep_vars: as in Module.state_dict.
    """
    state: dict[str, object] = {}
    for model, index in stages:
        buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)}
        for name, value in model.state_dict(keep_vars=keep_vars).items():
            if name not in buffers or index in _owners(name, cut):
                state.setdefault(prefix + name, value)
    return state


def _owners(name: str, cut: Cut) -> Iterable[int]:
    """The stages with parameters of the innermost module around a buffer that has any; all stages without such a module."""
    if name in cut.owners:
        return cut.owners[name]
    path = name
    while "." in path:
        path = path.rpartition(".")[0]
        owners = {stage for other, stages in cut.owners.items() if other.startswith(f"{path}.") for stage in stages}
        if owners:
            return owners
    return range(cut.stages)
