"""How long `gpuwise fit` takes as a fresh process: with nothing kept of the job, and with its traces on disk.

    python -m benchmarks.fit_speed [--runs 5] [--on h100-sxm]

Aims: 3 seconds cold, 0.3 seconds from the cache. Jobs: a preset (shipped traces), a small one of examples/, a user's own
8B Llama in bf16 at sequence length 4096, and ResNet-50 of timm where timm is installed. Prints medians of elapsed time
with their range, and of processor time, which is what counts on a busy machine; next to what importing PyTorch takes.
One run goes before all, so that Python's own cache of compiled modules is there, as it is of an installed package.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"
OWN_8B = '''"""An 8B Llama of another width than any preset has."""

from functools import partial

from gpuwise import Job
from gpuwise.job.models.language import next_token_batch, token_loss
from gpuwise.job.models.llama import Llama, LlamaConfig

config = LlamaConfig(width=3840, layers=36, heads=30, kv_heads=6, hidden=14_336)
job = Job(partial(Llama, config), partial(next_token_batch, vocabulary=config.vocabulary, seq_len=4096), token_loss,
          sample_unit="token", tokens_per_sample=4096, seq_len=4096)
'''


def jobs(folder: Path) -> dict[str, list[str]]:
    """Arguments of `gpuwise fit` by what they are of."""
    (folder / "own_8b.py").write_text(OWN_8B)
    os.utime(folder / "own_8b.py", (0, 0))
    results = {
        "llama3-8b, a preset": ["llama3-8b"],
        "char_gpt.py of examples/": [f"{EXAMPLES / 'char_gpt.py'}:job"],
        "own 8B Llama, bf16": [f"{folder / 'own_8b.py'}:job", "--precision", "bf16"],
    }
    return results | ({"timm:resnet50": ["timm:resnet50"]} if find_spec("timm") else {})


def seconds(command: list[str], cache: Path) -> tuple[float, float]:
    """Elapsed and processor time of one process with its cache in a folder."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "GPUWISE_NO_CACHE": "", "PYTHONDONTWRITEBYTECODE": ""}
    start, used = time.perf_counter(), processor_s()
    subprocess.run([sys.executable, *command], env=environment, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start, processor_s() - used


def processor_s() -> float:
    """Of all processes that this one has waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def show(name: str, found: list[tuple[float, float]]) -> None:
    elapsed, processor = zip(*found, strict=True)
    median, used = statistics.median(elapsed), statistics.median(processor)
    print(f"{median:6.2f} s  ({min(elapsed):.2f} to {max(elapsed):.2f})  processor {used:6.2f} s  {name}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--on", default="h100-sxm")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seconds(["-m", "gpuwise", "fit", f"{EXAMPLES / 'char_gpt.py'}:job", "--on", options.on], folder / "first")
        for what in ("pass", "import torch", "import torch._dynamo.config"):
            show(f"python -c '{what}'", [seconds(["-c", what], folder) for _ in range(options.runs)])
        for job, arguments in jobs(folder).items():
            command = ["-m", "gpuwise", "fit", *arguments, "--on", options.on]
            cold = [seconds(command, folder / f"{job} {run}") for run in range(options.runs)]
            cached = [seconds(command, folder / f"{job} 0") for _ in range(options.runs)]
            show(f"cold    {job}", cold)
            show(f"cached  {job}", cached)


if __name__ == "__main__":
    main()
