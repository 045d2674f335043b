"""Makes the recorded updates that compose other optimizers' steps: what depends on a parameter, as functions of its sizes.

One command: `gpuwise record updates`.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import torch

from gpuwise.atomic import written_whole
from gpuwise.strategy import KERNELS_OF, kernels_for
from gpuwise.trace.update.template_file import DATA, FORMAT, VERSION
from gpuwise.tracing.update_fit import Fit, forms_of
from gpuwise.tracing.updates import UpdateOf

DTYPES = ("float32", "bfloat16", "float64")


def record_updates(path: Path = DATA) -> None:
    """Records every optimizer's update and writes the file."""
    tables: dict[str, dict[str, int]] = {"rows": {}, "templates": {}}

    def index(table: str, item: object) -> int:
        return tables[table].setdefault(json.dumps(item), len(tables[table]))

    updates: dict[tuple[object, ...], dict[str, dict[str, int]]] = {}
    for update, dtype in _updates():
        for part, forms, together in _parts(update, dtype):
            key = update.optimizer, update.kernels, update.scaled, update.clipped, part, together
            of_key = updates.setdefault(key, {})
            of_key[f"{update.target} {dtype}"] = {
                form: index("templates", fit.template([index("rows", row) for row in fit.rows()]))
                for form, fit in forms.items()
            }
    head = {"format": FORMAT, "version": VERSION, "torch_version": torch.__version__.split("+")[0]}
    head["torchao_version"] = version("torchao").split("+")[0]
    names = "optimizer", "kernels", "scaled", "clipped", "part", "together"
    lists = {name: list(table) for name, table in tables.items()}
    lists["updates"] = [json.dumps({**dict(zip(names, key, strict=True)), "of": of}) for key, of in updates.items()]
    members = [json.dumps(head)[1:-1], *(f'"{name}": [\n' + ",\n".join(items) + "\n]" for name, items in lists.items())]
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as file:
        file.write(gzip.compress(("{" + ",\n".join(members) + "}\n").encode(), mtime=0))


def _updates() -> Iterator[tuple[UpdateOf, str]]:
    for target in ("accelerator", "cpu"):
        for optimizer in KERNELS_OF:
            for dtype in DTYPES:
                able = kernels_for(optimizer, on_cpu=target == "cpu", in_16_bits=dtype == "bfloat16")
                for kernels in able:
                    yield UpdateOf(optimizer, kernels, target), dtype
            for kernels in kernels_for(optimizer, on_cpu=target == "cpu", scaled=True):
                for clipped in (False, True):
                    yield UpdateOf(optimizer, kernels, target, scaled=True, clipped=clipped), "float32"


def _parts(update: UpdateOf, dtype: str) -> Iterator[tuple[str, dict[str, Fit], bool]]:
    """Each part of an update: its name, the templates of its forms, and whether parameters are updated together."""
    forms = forms_of(update.optimizer)
    for part in ("unscale", "step", "rescale") if update.scaled else ("step", "zero"):
        fits = [Fit(update, dtype, part, form) for form in (forms if part == "step" else forms[:1])]
        yield part, {fit.name: fit for fit in fits}, fits[0].together
