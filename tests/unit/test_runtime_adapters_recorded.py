"""Recordings without peft and bitsandbytes are those with them: operations, shapes, and how long each storage lives."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
from tests.unit.test_runtime_adapters import JOB, RANK, hide, program

from gpuwise.errors import MissingDependencyError
from gpuwise.strategy import Strategy
from gpuwise.trace import Trace
from gpuwise.tracing import record

pytestmark = pytest.mark.filterwarnings("ignore")  # of peft and what it imports


TABLE_BYTES = 256 * 4  # the codes of quantized scales


def shown(trace: Trace) -> dict[str, Any]:
    names, dtypes, values = trace.operations.name, trace.operations.dtype, trace.operations.values
    storages = trace.storages
    return {
        "operations": [(names[i], dtypes[i], *values[i].tolist()) for i in trace.sequence.operation],
        "modules": [trace.modules[i] for i in trace.sequence.module],
        "storages": sorted(zip(storages.size_bytes.tolist(), storages.born.tolist(), storages.died.tolist(), strict=True)),
        "loading": Counter(zip(trace.loading.size_bytes.tolist(), trace.loading.stays.tolist(), strict=True)),
        "parameters": (trace.header.parameters, trace.header.trainable_parameters, trace.header.gradient_shapes),
    }


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("precision", ["fp32", "amp-bf16", "amp-fp16", "bf16"])
@pytest.mark.parametrize(("adapter", "packages"), [("lora", ["peft"]), ("qlora", ["peft", "bitsandbytes"])])
def test_a_recording_is_the_same_without_the_packages(
    adapter: str, packages: list[str], precision: str, recompute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = Strategy(precision, micro_batch=4, adapter=adapter, adapter_rank=RANK, recompute=recompute)
    there = shown(record(JOB, strategy))
    for package in packages:
        hide(package, monkeypatch)
    without = shown(record(JOB, strategy))
    # bitsandbytes makes its table of codes on the device once a process, whatever model it packs.
    once = there.pop("loading") - without.pop("loading")
    assert once == (Counter({(TABLE_BYTES, False): 1}) if adapter == "qlora" else Counter())
    for part, expected in there.items():
        assert without[part] == expected, part


def test_a_run_needs_them_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    hide("peft", monkeypatch)
    record(JOB, Strategy(micro_batch=4, adapter="lora", adapter_rank=RANK))
    with pytest.raises(MissingDependencyError, match="peft"):
        program(adapter="lora")


def test_a_process_that_has_neither_forecasts_qlora() -> None:
    code = (
        "import sys, warnings\nwarnings.simplefilter('ignore')\n"
        "for name in ('peft', 'bitsandbytes', 'torchao', 'transformers'): sys.modules[name] = None\n"
        "from tests.unit.test_runtime_adapters import JOB, RANK\n"
        "from gpuwise.strategy import Strategy\nfrom gpuwise.tracing import record\n"
        "trace = record(JOB, Strategy('amp-bf16', micro_batch=4, adapter='qlora', adapter_rank=RANK))\n"
        "print(sum('dequantize_4bit' in trace.operations.name[i] for i in trace.sequence.operation))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) == 2 * (4 + 3)  # of two micro-batches: forward of four layers, backward of three
