"""The allocations of a model in 4 bits while it is made, against bitsandbytes on this CPU and against whole recordings."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.support.transformers_loading import Loaded, loading_of
from tests.unit.test_runtime_adapters import JOB, RANK, WIDTH
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gpuwise.cost.memory.events import step_events
from gpuwise.job import Job
from gpuwise.job.models.language import next_token_batch, token_loss
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.strategy import Strategy
from gpuwise.trace import BEFORE, CATEGORIES, Loading, LoadingLog
from gpuwise.tracing import record

pytestmark = pytest.mark.filterwarnings("ignore")  # of peft and what it imports

QLORA = Strategy("amp-bf16", micro_batch=2, adapter="qlora", adapter_rank=RANK)


def rows(loading: Loading) -> list[tuple[int, int]]:
    return list(zip(loading.size_bytes.tolist(), loading.lifetime.tolist(), strict=True))


class RealAllocations(TorchDispatchMode):
    """Notes the memory of real tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.log, self.alive = LoadingLog(), dict[int, int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and (storage := tensor.untyped_storage())._cdata not in self.alive:
                self.alive[storage._cdata] = self.log.allocate(storage.nbytes())
                weakref.finalize(storage, self.free, storage._cdata)
        return out

    def free(self, address: int) -> None:
        self.log.free(self.alive.pop(address))


@pytest.mark.parametrize("precision", ["fp32", "amp-bf16"])
def test_a_layer_is_packed_as_bitsandbytes_packs_it(precision: str) -> None:
    from bitsandbytes.functional import quantize_4bit

    dtype = torch.bfloat16 if precision == "amp-bf16" else torch.float32
    quantize_4bit(torch.randn(64, 64), compress_statistics=True, quant_type="nf4")  # its tables are of the process
    with RealAllocations() as real:
        values = torch.ones(4 * WIDTH, WIDTH, dtype=dtype)
        kept = quantize_4bit(values, compress_statistics=True, quant_type="nf4")
        del values
    trace = record(JOB, QLORA.but(precision=precision))
    full = np.flatnonzero(trace.loading.size_bytes == 4 * WIDTH * WIDTH * dtype.itemsize)
    second = int(full[1])  # the first makes the table of codes
    assert rows(trace.loading)[second : second + len(rows(real.log.loading()))] == rows(real.log.loading())
    assert kept[1].nested


def test_what_stays_is_what_lives_before_the_step() -> None:
    trace = record(JOB, QLORA)
    storages, loading = trace.storages, trace.loading
    before = (storages.born == BEFORE) & (storages.category != CATEGORIES.index("optimizer_state"))
    assert sorted(storages.size_bytes[before].tolist()) == sorted(loading.size_bytes[loading.stays].tolist())
    assert (step_events(trace).size_bytes == 4 * WIDTH * WIDTH * 2).any()  # a weight at full size, in bf16


@pytest.mark.parametrize("strategy", [QLORA.but(adapter="lora"), QLORA.but(adapter="none")])
def test_steps_that_free_nothing_while_they_are_made_have_none(strategy: Strategy) -> None:
    assert not len(record(JOB, strategy).loading)


def deep(blocks: int) -> Job:
    config = LlamaConfig(vocabulary=320, width=32, layers=blocks, heads=4, kv_heads=2, hidden=64)
    batch = partial(next_token_batch, vocabulary=320, seq_len=8)
    return Job(model=lambda: Llama(config), batch=batch, loss=token_loss)


@pytest.mark.slow
def test_a_recording_of_few_blocks_has_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    few = record(deep(12), QLORA)
    monkeypatch.setattr(sys.modules["gpuwise.tracing.record"], "few_blocks", lambda job, strategy: None)
    whole = record(deep(12), QLORA)
    assert len(few.loading) > 12 * 7
    assert rows(few.loading) == rows(whole.loading)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.up, self.head = nn.Embedding(100, 64), nn.Linear(64, 128, bias=False), nn.Linear(128, 100, bias=False)


def test_transformers_packs_one_weight_after_another_then_casts_the_others() -> None:
    with torch.device("meta"):
        model = Decoder().half()
    loading = loading_of(Loaded(model, ["up"], double_quantized=False, adapter_rank=4, adapted=["up"]))
    words, up, head = 100 * 64, 64 * 128, 128 * 100
    warm_up = (2 * words + up // 2 + 2 * head) // 2 * 2
    table = 64  # 16 codes, and scratch for them
    stays = loading.stays.tolist()
    made = [(size, stay) for (size, _), stay in zip(rows(loading), stays, strict=True) if size > table]
    assert made == [
        (warm_up, False),
        (2 * head, False),
        (2 * up, False),
        (up // 2, True),
        (up // 64 * 4, True),
        (2 * words, False),
        (4 * words, True),
        (4 * head, True),
        (4 * 4 * 64, True),
        (4 * 4 * 128, True),
    ]
    lifetime = dict(rows(loading))
    assert lifetime[warm_up] == 0  # freed at once
    assert lifetime[2 * words] == 1  # until its cast


def test_tables_of_the_process_stay_as_they_were() -> None:
    from bitsandbytes import functional

    before = functional.name2qmap
    record(JOB, QLORA)
    assert functional.name2qmap is before
    assert all(type(table) is torch.Tensor for table in before.values())
