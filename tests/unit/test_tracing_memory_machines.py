"""Predicted peak memory under the instruction sets and thread counts that environment variables can give a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from gpuwise.hardware.detect.cpu import detect_cpu

# What oneDNN and PyTorch may use, and the units of which a processor must have one for that.
MACHINES = {
    "AVX2": ({"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}, {"avx2"}),
    "AVX-512": ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "ATEN_CPU_CAPABILITY": "avx512"}, {"avx512", "avx512-halved"}),
    "AMX": ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX", "ATEN_CPU_CAPABILITY": "avx512"}, {"amx-bf16"}),
}
CASES = ("MLP, momentum foreach", "LSTM, adam", "ViT, adamw", "ResNet")
PROGRAM = """
import json, sys, warnings
warnings.simplefilter("ignore")
from benchmarks.memory_on_cpu import compare
from test_tracing_memory_truth import CASES, SMALL_RESNET
for name in json.loads(sys.argv[1]):
    row = compare({**CASES, "ResNet": SMALL_RESNET}[name], threads=int(sys.argv[2]))
    print(json.dumps([name, row.predicted, row.measured]))
"""


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("machine", MACHINES)
def test_the_predicted_peak_is_the_real_one_on(machine: str, threads: int):
    variables, units = MACHINES[machine]
    if not units & set(detect_cpu().flags):
        pytest.skip(f"this processor has no {machine}")
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(CASES), str(threads)],
        text=True,
        env={**os.environ, **variables, "OMP_WAIT_POLICY": "passive", "PYTHONPATH": path},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert [name for name, _, _ in rows] == list(CASES)
    wrong = [row for row in rows if abs(row[1] / row[2] - 1) > 0.00001]  # not a thousandth of a per cent
    assert not wrong, (machine, threads, wrong)
