"""Lets torchvision be imported where its compiled operators do not load (a CPU-only PyTorch), for model definitions."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

_KEPT_ALIVE: list[Any] = []  # a torch.library.Library takes its definitions with it when it dies


def make_importable() -> None:
    """Imports torchvision if it is installed; when its operators are missing, defines their names so that it imports.

    The operators (non-maximum suppression, region pooling, ...) then exist by name only and raise when called, as they
    did before; image classifiers do not use them. torchvision's own Python code registers shape functions for exactly
    the names that are defined here, which is what fails without them. Nothing is done where torchvision imports or is
    absent.
    """
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
        return
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]  # what the failed import left half done
    _define_operator_names()
    importlib.import_module("torchvision")


def _define_operator_names() -> None:
    import torch

    spec = importlib.util.find_spec("torchvision")
    assert spec is not None
    assert spec.origin is not None
    registrations = (Path(spec.origin).parent / "_meta_registrations.py").read_text(encoding="utf-8")
    library = torch.library.Library("torchvision", "DEF")
    _KEPT_ALIVE.append(library)
    names = re.findall(r"torchvision::(\w+)", registrations) + re.findall(r'register_meta\("(\w+)"', registrations)
    for name in sorted(set(names)):
        library.define(f"{name}(Tensor unavailable) -> Tensor")
