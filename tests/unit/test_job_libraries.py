"""Other libraries under a user's job: a torchvision whose operators do not load, and what libraries print of themselves."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch")

# A package that fails as torchvision does beside a PyTorch it was not built for: the second file registers shape functions for
# operators that the first, a compiled library, did not define.
BROKEN = {
    "__init__.py": "from torchvision import _meta_registrations, models\n",
    "_meta_registrations.py": (
        'import torch\n@torch.library.register_fake("torchvision::nms")\ndef meta_nms(dets, scores, iou_threshold): ...\n'
    ),
    "models.py": "import torch\ndef tiny(): return torch.nn.Linear(8, 2)\n",
}
LIBRARY = "import importlib.util\nassert importlib.util.find_spec('torchvision')\nfrom torchvision.models import tiny\n"
JOB = """
import torch
from {library} import tiny
from gpuwise import Job
job = Job(model=tiny, batch=lambda n: torch.randn(n, 8), loss=lambda m, x: m(x).square().mean())
"""


def without_progress(stderr: str) -> str:
    """What a slow machine says after some seconds is no noise."""
    return "".join(line for line in stderr.splitlines(keepends=True) if not line.startswith("tracing the step of "))


@pytest.mark.parametrize("library", ["torchvision.models", pytest.param("of_models", marks=pytest.mark.slow)])
def test_a_broken_torchvision_stops_no_job_that_does_without_its_operators(tmp_path: Path, library: str):
    (tmp_path / "torchvision").mkdir()
    for name, text in BROKEN.items():
        (tmp_path / "torchvision" / name).write_text(text)
    (tmp_path / "of_models.py").write_text(LIBRARY)
    (tmp_path / "mine.py").write_text(JOB.format(library=library))
    plain = subprocess.run(
        [sys.executable, "-c", "import torchvision"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "operator torchvision::nms does not exist" in plain.stderr
    done = subprocess.run(
        [sys.executable, "-m", "gpuwise", "forecast", "mine.py:job", "--on", "t4"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, without_progress(done.stderr)) == (0, "")
    assert done.stdout.startswith("mine:job on t4")


def test_libraries_are_silent_unless_the_user_wants_them(monkeypatch: pytest.MonkeyPatch):
    import logging
    import os

    from gpuwise.job.library_logging import silence_libraries

    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "info")
    for name, level in (("torchao", logging.NOTSET), ("timm", logging.INFO)):
        monkeypatch.setattr(logging.getLogger(name), "level", level)
    silence_libraries()
    assert logging.getLogger("torchao").level == logging.ERROR
    assert logging.getLogger("timm").level == logging.INFO
    assert os.environ["TRANSFORMERS_VERBOSITY"] == "info"


@pytest.mark.slow
def test_forecasting_an_adapter_prints_nothing_beside_the_answer(tmp_path: Path):
    if find_spec("peft") is None:
        pytest.skip("peft is absent")
    (tmp_path / "mine.py").write_text(JOB.format(library="of_models"))
    (tmp_path / "of_models.py").write_text(
        "import torch\ndef tiny(): return torch.nn.Sequential(torch.nn.Linear(8, 8), "
        "torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "gpuwise", "forecast", "mine.py:job", "--on", "t4", "--adapter", "lora"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, without_progress(done.stderr)) == (0, "")
