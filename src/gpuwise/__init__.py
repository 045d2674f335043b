"""Will my model fit, how long, how much, on what? And then: run it so.

The public names are loaded when first used: `import gpuwise` alone imports neither NumPy nor PyTorch.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from gpuwise.version import __version__

_HOME = {
    "Job": "gpuwise.job",
    "ClassicalJob": "gpuwise.job",
    "Mesh": "gpuwise.strategy",
    "Strategy": "gpuwise.strategy",
    "Catalog": "gpuwise.hardware",
    "Chip": "gpuwise.hardware",
    "Machine": "gpuwise.hardware",
    "Offer": "gpuwise.hardware",
    "Trace": "gpuwise.trace",
    "TraceFamily": "gpuwise.trace",
    "Forecast": "gpuwise.cost",
    "Interval": "gpuwise.cost",
    "Plan": "gpuwise.plan",
    "PlanResult": "gpuwise.plan",
    "load_plan": "gpuwise.plan",
    "forecast": "gpuwise.api",
    "memory_timeline": "gpuwise.api",
    "roofline": "gpuwise.api",
    "step_timeline": "gpuwise.api",
    "classical_forecast": "gpuwise.api",
    "kernel": "gpuwise.api",
    "export": "gpuwise.api",
    "fit": "gpuwise.api",
    "compare": "gpuwise.api",
    "scale": "gpuwise.api",
    "plan": "gpuwise.api",
    "serve_plan": "gpuwise.api",
    "Trainer": "gpuwise.api",
    "train": "gpuwise.api",
    "validate": "gpuwise.api",
    "measure": "gpuwise.api",
    "record": "gpuwise.api",
    "doctor": "gpuwise.api",
    "chips": "gpuwise.api",
    "offers": "gpuwise.api",
    "GpuwiseError": "gpuwise.errors",
    "InputError": "gpuwise.errors",
    "JobError": "gpuwise.errors",
    "NoPlanError": "gpuwise.errors",
    "UnknownNameError": "gpuwise.errors",
}

# Names that are both a verb of the API and a package of the same name: the package is made callable, so that
# `gpuwise.plan(...)` and `import gpuwise.plan.search` both work, in whatever order they come.
_CALLABLE_PACKAGES = ("export", "measure", "plan")

__all__ = ["__version__", *_HOME]

if TYPE_CHECKING:
    from gpuwise.api import Trainer as Trainer
    from gpuwise.api import chips as chips
    from gpuwise.api import classical_forecast as classical_forecast
    from gpuwise.api import compare as compare
    from gpuwise.api import doctor as doctor
    from gpuwise.api import export as export
    from gpuwise.api import fit as fit
    from gpuwise.api import forecast as forecast
    from gpuwise.api import kernel as kernel
    from gpuwise.api import measure as measure
    from gpuwise.api import memory_timeline as memory_timeline
    from gpuwise.api import offers as offers
    from gpuwise.api import plan as plan
    from gpuwise.api import record as record
    from gpuwise.api import roofline as roofline
    from gpuwise.api import scale as scale
    from gpuwise.api import serve_plan as serve_plan
    from gpuwise.api import step_timeline as step_timeline
    from gpuwise.api import train as train
    from gpuwise.api import validate as validate
    from gpuwise.cost import Forecast as Forecast
    from gpuwise.cost import Interval as Interval
    from gpuwise.errors import GpuwiseError as GpuwiseError
    from gpuwise.errors import InputError as InputError
    from gpuwise.errors import JobError as JobError
    from gpuwise.errors import NoPlanError as NoPlanError
    from gpuwise.errors import UnknownNameError as UnknownNameError
    from gpuwise.hardware import Catalog as Catalog
    from gpuwise.hardware import Chip as Chip
    from gpuwise.hardware import Machine as Machine
    from gpuwise.hardware import Offer as Offer
    from gpuwise.job import ClassicalJob as ClassicalJob
    from gpuwise.job import Job as Job
    from gpuwise.plan import Plan as Plan
    from gpuwise.plan import PlanResult as PlanResult
    from gpuwise.plan import load_plan as load_plan
    from gpuwise.strategy import Mesh as Mesh
    from gpuwise.strategy import Strategy as Strategy
    from gpuwise.trace import Trace as Trace
    from gpuwise.trace import TraceFamily as TraceFamily


class _Verb(ModuleType):
    """A package that can be called: runs the function of the same name in gpuwise.api."""

    def __call__(self, *args: object, **keywords: object) -> object:
        verb = getattr(importlib.import_module("gpuwise.api"), self.__name__.rpartition(".")[2])
        return verb(*args, **keywords)


class _Gpuwise(ModuleType):
    def __setattr__(self, name: str, value: object) -> None:
        # The import system binds a subpackage on its parent with setattr once it has loaded.
        if name in _CALLABLE_PACKAGES and isinstance(value, ModuleType):
            value.__class__ = _Verb
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Gpuwise


def __getattr__(name: str) -> object:
    if name in _CALLABLE_PACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
