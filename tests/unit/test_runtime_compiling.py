"""What of a model is compiled, and that it really is: TorchDynamo takes the graphs, nothing compiles them further."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import fx, nn
from tracing_samples import cnn_job

from gpuwise.job import Job, checked_batch
from gpuwise.job.models.language import next_token_batch, token_loss
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.runtime.build import compiling
from gpuwise.runtime.build.program import build
from gpuwise.strategy import Strategy

LLAMA = Job(
    lambda: Llama(LlamaConfig(vocabulary=128, width=64, layers=3, heads=4, kv_heads=2, hidden=192)),
    partial(next_token_batch, vocabulary=128, seq_len=32),
    token_loss,
)
pytestmark = pytest.mark.filterwarnings("ignore")  # TorchDynamo reads .grad of tensors that have none


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[fx.GraphModule]]:
    """The graphs that were handed to a compiler."""
    results: list[fx.GraphModule] = []
    compile_with = torch.compile

    def take(graph: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        results.append(graph)
        return graph.forward

    monkeypatch.setattr(compiling.torch, "compile", lambda function: compile_with(function, backend=take))
    torch.compiler.reset()
    yield results
    torch.compiler.reset()


def run(job: Job, **options: Any) -> None:
    program = build(job, Strategy(micro_batch=2, compile=True, **options), "cpu")
    program.forward_backward(checked_batch(job, 2))


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_blocks_that_are_alike_are_one_graph(recompute: str, graphs: list[fx.GraphModule]) -> None:
    run(LLAMA, recompute=recompute)
    assert len(graphs) == 1


def test_a_model_of_pytorchs_own_layers_is_compiled_whole(graphs: list[fx.GraphModule]) -> None:
    run(cnn_job())
    assert len(graphs) == 1


def test_parts_are_the_blocks_where_all_are_alike() -> None:
    def block(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(8, width), nn.Linear(width, 8))

    alike, differing = (nn.Sequential(*map(block, widths)) for widths in ((4, 4), (4, 4, 6, 6)))
    assert compiling.compiled_parts(alike) == list(alike)
    assert compiling.compiled_parts(differing) == [differing]
