"""Makes torchvision importable where its compiled operators do not load (a CPU-only PyTorch), for model definitions."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

_libraries: list[object] = []  # a torch.library.Library takes its definitions with it when it dies
_defined: set[str] = set()  # operators that exist by name only
# Operators with the arguments that they have, so that a forecast can record them (torchvision/csrc/ops/nms.cpp, roi_align.cpp).
_SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align": "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio, bool aligned) -> Tensor",
    "_roi_align_backward": "(Tensor grad, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "SymInt batch_size, SymInt channels, SymInt height, SymInt width, int sampling_ratio, bool aligned) -> Tensor",
}


def make_importable() -> None:
    """From here on `import torchvision` works, wherever it stands: in timm, in transformers, in the user's own file.

    Where its operators (non-maximum suppression, region pooling, ...) are missing, they exist by name only and raise when
    called, as they did before; image classifiers do not use them, and those of _SCHEMAS can be recorded. torchvision's own
    Python code registers shape functions for exactly the names that are defined here, which is what fails without them.
    Nothing is imported now, and nothing changes where torchvision imports by itself or is absent.
    """
    if "torchvision" not in sys.modules and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def stands_in(name: str) -> bool:
    """Whether one of torchvision's operators exists by name only."""
    return name in _defined


class _Finder(MetaPathFinder):
    """Finds torchvision as any other does, with a loader that mends it."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "torchvision":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next((spec for finder in others if (spec := finder.find_spec(name, path, target)) is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _MendingLoader(spec.loader)
        return spec


class _MendingLoader(Loader):
    """Runs a package's code, and where that fails for want of operators, again with their names defined."""

    def __init__(self, loader: Loader):
        self._loader = loader

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        try:
            self._loader.exec_module(module)
        except RuntimeError as error:
            if "torchvision::" not in str(error):
                raise
            for name in [name for name in sys.modules if name.startswith("torchvision.")]:
                del sys.modules[name]  # what the failed import left half done
            _define_operator_names(Path(str(module.__file__)).parent)
            self._loader.exec_module(module)


def _define_operator_names(folder: Path) -> None:
    import torch

    registrations = (folder / "_meta_registrations.py").read_text(encoding="utf-8")
    library = torch.library.Library("torchvision", "DEF")
    _libraries.append(library)
    names = re.findall(r"torchvision::(\w+)", registrations) + re.findall(r'register_meta\("(\w+)"', registrations)
    for name in sorted(set(names)):
        library.define(name + _SCHEMAS.get(name, "(Tensor unavailable) -> Tensor"))
        _defined.add(name)
