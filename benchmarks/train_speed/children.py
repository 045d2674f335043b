"""Contestants in processes of their own: one a contestant that has imported what it needs, and forks one for each run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
import warnings
from importlib import import_module
from typing import Any

LIBRARIES = ("transformers", "transformers.models.gpt2.modeling_gpt2", "transformers.models.bert.modeling_bert", "timm")
# Contestant -> the module of its function, the function, and what is imported before.
PEERS, OURS = "benchmarks.train_speed.peers", "benchmarks.train_speed.ours"
CONTESTANTS = {
    "gpuwise": (OURS, "columns", ()),
    "gpuwise, data set": (OURS, "rows", ()),
    "gpuwise, no folder": (OURS, "no_folder", ()),
    "by hand, index batches": (PEERS, "indexed", ()),
    "by hand, DataLoader": (PEERS, "loader", ()),
    "by hand, DataLoader, memory kept": (PEERS, "kept", ("gpuwise.runtime.build.host_memory",)),
    "Trainer": (PEERS, "trainer", ("transformers.trainer",)),
    "accelerate": (PEERS, "accelerated", ("accelerate",)),
    "Lightning": (PEERS, "lightning", ("lightning.pytorch",)),
    "in turns": (OURS, "in_turns", ()),
    "saved": (OURS, "saved", ()),
}


class Server:
    """A contestant's process: asked for a run, it forks, so that each run begins alike and none waits for imports."""

    def __init__(self, contestant: str):
        self.contestant = contestant
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.train_speed", "--serve", contestant],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **request: str) -> Any:
        """What the contestant's function gives for a work (by the name of its table and its own) and a precision."""
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        if isinstance(answer, dict) and "failed" in answer:
            raise RuntimeError(f"{self.contestant} failed at {request}:\n{answer['failed']}")
        return answer

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def serve(contestant: str) -> None:
    """Answers requests, a line each, until there are no more."""
    from gpuwise.job.torchvision_cpu import make_importable

    warnings.simplefilter("ignore")
    make_importable()
    module, function, libraries = CONTESTANTS[contestant]
    for name in (*LIBRARIES, *libraries, module):
        import_module(name)
    answers = os.dup(1)
    for line in sys.stdin:
        if child := os.fork():
            if os.waitpid(child, 0)[1]:
                os.write(answers, b'{"failed": "its process ended"}\n')
            continue
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silence, stream)
        try:
            answer = _run(module, function, **json.loads(line))
        except BaseException:
            answer = {"failed": traceback.format_exc()}
        os.write(answers, (json.dumps(answer) + "\n").encode())
        os._exit(0)


def _run(module: str, function: str, *, table: str, work: str, precision: str) -> Any:
    import torch

    from benchmarks.train_speed.works import TABLES, THREADS

    torch.set_num_threads(THREADS)
    return getattr(import_module(module), function)(TABLES[table][work], precision)
