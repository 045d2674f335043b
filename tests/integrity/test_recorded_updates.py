"""The recorded updates that ship: complete, of the pinned versions, and what PyTorch does today."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch

from gpuwise.errors import FileFormatError, UnsupportedError
from gpuwise.strategy import KERNELS_OF, kernels_for
from gpuwise.trace.tables import OperationRow
from gpuwise.trace.update.rows import Parameter
from gpuwise.trace.update.template_file import DATA, RecordedUpdates, updates
from gpuwise.trace.update.whole import state_bytes, whole_update
from gpuwise.tracing.updates import UpdateOf, record_update

ALL = [(name, kernels) for name in KERNELS_OF for kernels in KERNELS_OF[name]]
# None of these were recorded; there are more than one launch takes, and some with a side of 1.
MATRICES = [(33, 9), (9, 33), (1, 12), (12, 1), (64, 128)]
MIXED = [(5,), *MATRICES, (3, 4, 5, 6), (), (70_000,), *[(21,)] * 40, (2, 3, 1)]


def test_the_file_is_small_and_of_the_pinned_version() -> None:
    assert DATA.stat().st_size < 20_000
    assert updates().torch_version == torch.__version__.split("+")[0]


def test_every_optimizer_is_there() -> None:
    for on_host in (False, True):
        for dtype in ("float32", "bfloat16", "float64"):
            for optimizer in KERNELS_OF:
                for kernels in kernels_for(optimizer, on_cpu=on_host, in_16_bits=dtype == "bfloat16"):
                    assert updates().update(optimizer, kernels, dtype, on_host=on_host).forms
    with pytest.raises(UnsupportedError, match="no update of float16"):
        updates().update("sgd", "fused", "float16", on_host=False)


@pytest.mark.parametrize(
    ("scaled", "clipped"), [(False, False), (True, False), (True, True)], ids=["plain", "scaled", "clipped"]
)
@pytest.mark.parametrize(("optimizer", "kernels"), ALL)
def test_an_update_is_what_the_optimizer_does(optimizer: str, kernels: str, scaled: bool, clipped: bool) -> None:
    if scaled and kernels not in kernels_for(optimizer, scaled=True):
        pytest.skip("gpuwise does not use these kernels")
    if "bit" in optimizer:
        pytest.importorskip("torchao")
    shapes = MATRICES if optimizer == "muon" else MIXED
    update = UpdateOf(optimizer, kernels, "accelerator", scaled, clipped)
    recorded = record_update(update, [(shape, "float32") for shape in shapes])
    parameters = [Parameter(shape, 4, hidden=True) for shape in shapes]
    composed = whole_update(optimizer, kernels, parameters, scaled=scaled, keep_gradients=True, clipped=clipped)
    assert [tuple(row) for row in composed.rows] == [tuple(OperationRow(*row)) for row in recorded.rows]
    temporaries = sorted((t.size_bytes, t.born, t.died) for t in composed.temporaries)
    assert temporaries == sorted(recorded.temporaries)
    assert [tuple(state_bytes(optimizer, kernels, p)) for p in parameters] == list(recorded.state)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / DATA.name
    path.write_bytes(DATA.read_bytes()[:1000])
    with pytest.raises(FileFormatError, match="damaged"):
        RecordedUpdates(path)
    path.write_bytes(gzip.compress(json.dumps({"format": "gpuwise-updates", "version": 1}).encode()))
    with pytest.raises(FileFormatError, match="version 1"):
        RecordedUpdates(path)
