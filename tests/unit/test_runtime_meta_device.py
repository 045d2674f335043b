"""Models that are built without memory, and modules that are imported meanwhile."""

from __future__ import annotations

import sys

import torch
from torch import nn

from gpuwise.runtime.build.meta_device import made_on_meta


def test_a_module_imported_by_a_builder_keeps_its_values(tmp_path, monkeypatch):
    (tmp_path / "of_a_library.py").write_text(
        "import torch\n"
        "CONSTANT = torch.tensor(3.0)\n"
        "class Table:\n"
        "    values = torch.arange(4)\n"
        "def scaled(x, scale=torch.ones(2)):\n"
        "    return x * scale\n"
        "def made():\n"
        "    return torch.zeros(5)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def make() -> nn.Module:
        import of_a_library  # type: ignore[import-not-found]

        model = nn.Linear(2, 2)
        model.register_buffer("zeros", of_a_library.made())
        return model

    model = made_on_meta(make)
    library = sys.modules.pop("of_a_library")
    assert all(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])
    assert float(library.CONSTANT) == 3
    assert library.Table.values.tolist() == [0, 1, 2, 3]
    assert library.scaled(torch.ones(2)).tolist() == [1, 1]
