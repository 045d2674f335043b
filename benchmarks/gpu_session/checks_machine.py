"""What gpuwise says of the GPU against what PyTorch says of it: detection, kernels chosen, recorded steps, microbenchmarks."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import torch

from benchmarks.gpu_session.checks_copies import needs_cuda
from benchmarks.gpu_session.models import classifier, language
from gpuwise.hardware import detect_machine, load_catalog
from gpuwise.hardware.detect.nvml import survey_gpus
from gpuwise.hardware.disturbances import disturbances
from gpuwise.hardware.load import load
from gpuwise.job import Job
from gpuwise.measure.observe import observe
from gpuwise.measure.probes import copies, memory, peaks
from gpuwise.notes import sentences
from gpuwise.runtime.build.host_threads import unusable
from gpuwise.runtime.devices.chips import accelerators
from gpuwise.strategy import Strategy
from gpuwise.tracing.kernels.attention import Call, choose
from gpuwise.tracing.kernels.target import targeting
from gpuwise.tracing.record import record_many


def detected(device: torch.device) -> dict[str, Any]:
    """NVML, the catalog and PyTorch agree on the first GPU."""
    needs_cuda(device)
    about, survey = torch.cuda.get_device_properties(0), survey_gpus()
    result = detect_machine(load_catalog(), measured=False)
    [*seen] = accelerators(load_catalog())
    assert survey.gpus, "no GPU was detected"
    gpu, load_now = survey.gpus[0], survey.loads[0]
    assert gpu.name == about.name, (gpu.name, about.name)
    assert gpu.compute_capability in (None, (about.major, about.minor))
    assert abs(gpu.memory_bytes / about.total_memory - 1) < 0.05, (gpu.memory_bytes, about.total_memory)
    assert result.chip.kind.startswith("gpu"), result.chip.id
    assert seen[0].in_catalog, f"{about.name} is not in the catalog"
    assert seen[0].chip.id == result.chip.id, (seen[0].chip.id, result.chip.id)
    assert result.chip.sm_count in (None, about.multi_processor_count), (result.chip.sm_count, about.multi_processor_count)
    usable = result.chip.usable_memory_bytes
    return {
        "chip": result.chip.id,
        "told_by": survey.source,
        "gpu": repr(gpu),
        "load": repr(load_now),
        "usable_bytes": usable,
        "total_bytes": about.total_memory,
        "sheet_bytes": result.chip.memory_bytes,
        "l2_bytes": about.L2_cache_size,
    }


def precisions_usable(device: torch.device) -> dict[str, Any]:
    """Which precisions are said to be ignored or emulated here."""
    return {
        precision: sentences(unusable(Strategy(precision=precision), device))
        for precision in ("tf32", "amp-bf16", "bf16", "fp8", "amp-fp16")
    }


def loads(device: torch.device) -> dict[str, Any]:
    """What is noticed between two looks at the machine, with nothing but this process at work."""
    before = load()
    x = torch.randn(512, 512, device=device)
    for _ in range(200):
        x = x @ x / 512
    after = load()
    return {"said": sentences(disturbances(before, after)), "gpus": [repr(gpu) for gpu in after.gpus]}


def attention_kernels(device: torch.device) -> dict[str, Any]:
    """The kernel that is assumed for scaled_dot_product_attention is the one PyTorch takes."""
    needs_cuda(device)
    different, count = [], 0
    dtypes, masks = (torch.float32, torch.float16, torch.bfloat16), ("none", "causal", "boolean", "additive")
    for dtype, head, mask, dropout, heads in itertools.product(
        dtypes, (32, 64, 72, 80, 128, 256, 512), masks, (0.0, 0.1), (8, 2)
    ):
        if mask == "causal" and head == 512 and dropout:
            continue
        query = torch.randn(2, 8, 128, head, device=device, dtype=dtype, requires_grad=True)
        key, value = (torch.randn(2, heads, 128, head, device=device, dtype=dtype, requires_grad=True) for _ in range(2))
        given = {
            "boolean": torch.ones(2, 1, 128, 128, device=device, dtype=torch.bool),
            "additive": torch.zeros(2, 8, 128, 128, device=device, dtype=dtype),
        }.get(mask)
        grouped, causal = heads != 8, mask == "causal"
        try:
            real = torch._fused_sdp_choice(query, key, value, given, dropout, causal, enable_gqa=grouped)
        except RuntimeError as error:
            real = f"refused: {str(error).splitlines()[0][:80]}"
        with targeting("accelerator"):
            try:
                ours = choose(Call(query, key, value, given, dropout, causal, grouped)).value
            except RuntimeError:
                ours = "refused"
        count += 1
        if real != ours:
            different.append(
                f"{str(dtype)[6:]} head {head}, mask {mask}, dropout {dropout}, grouped {grouped}: "
                f"PyTorch {real}, assumed {ours}"
            )
    by_kind = Counter(line.partition(": ")[2] for line in different)
    return {"calls": count, "different": len(different), "kinds": dict(by_kind), "examples": different[:40]}


def recorded_steps(device: torch.device, *, job: Callable[[], Job], precision: str, **settings: Any) -> dict[str, Any]:
    """The operations recorded on the virtual device are those the real one runs, in number, name and bytes."""
    strategy = Strategy(precision=precision, micro_batch=4, optimizer="adamw", **settings)
    seen = observe(job(), strategy, device, steps=2)
    assert (seen.seconds >= 0).all(), "an operation took less than no time"
    target = "cpu" if device.type == "cpu" else "accelerator"
    [virtual] = record_many(job(), strategy, [4], target=target, once=[4])  # without a second micro-batch
    names = [
        Counter(trace.operations.name[row] for row in trace.sequence.operation.tolist()) for trace in (virtual, seen.trace)
    ]
    different = {name: [names[0][name], names[1][name]] for name in names[0] | names[1] if names[0][name] != names[1][name]}
    return {
        "rows": [sum(count.values()) for count in names],
        "different": different,
        "share_of_step": float(seen.seconds.sum(axis=1).mean() / seen.step_s.mean()),
    }


def probe(device: torch.device, *, module: ModuleType, budget_s: float) -> dict[str, Any]:
    """A microbenchmark's rows: each with a time, and with results that are right where that is checked."""
    messages: list[str] = []
    results = list(module.rows(budget_s, device, messages.append))
    wrong = [f"{row.name} {dict(row.sizes)}" for row in results if row.verified is False]
    assert not wrong, f"wrong results: {wrong[:5]}"
    assert all(row.timing.median_s > 0 for row in results)
    return {"rows": [row.to_dict() for row in results], "said": messages}


def one_process_collectives(device: torch.device) -> dict[str, Any]:
    """NCCL with a single process: the worker of the probe of several devices, alone."""
    needs_cuda(device)
    with tempfile.TemporaryDirectory() as folder:
        request = {"rank": 0, "world": 1, "kind": "cuda", "meeting": f"{folder}/meeting", "budget_s": 5.0}
        command = [sys.executable, "-m", "gpuwise.measure.probes.collectives_worker", json.dumps(request)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as worker:
            assert worker.stdout is not None
            assert worker.stderr is not None
            messages = [json.loads(line) for line in worker.stdout]
            text = worker.stderr.read().decode(errors="replace")
    assert worker.returncode == 0, text[-400:]
    assert any("timing" in answer for answer in messages), text[-400:]
    assert all(answer.get("verified", True) for answer in messages), messages
    return {"rows": messages}


CHECKS: dict[str, Callable[[torch.device], dict[str, Any]]] = {
    "detection": detected,
    "precisions": precisions_usable,
    "load": loads,
    "attention kernels": attention_kernels,
    "recorded, classifier, fp32": partial(recorded_steps, job=classifier, precision="fp32"),
    "recorded, language, amp-bf16": partial(recorded_steps, job=language, precision="amp-bf16"),
    "recorded, language, bf16, recompute": partial(recorded_steps, job=language, precision="bf16", recompute="full"),
    "probe memory": partial(probe, module=memory, budget_s=3.0),
    "probe peaks": partial(probe, module=peaks, budget_s=3.0),
    "probe copies": partial(probe, module=copies, budget_s=2.0),
    "NCCL": one_process_collectives,
}
