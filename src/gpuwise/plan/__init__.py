"""The search for hardware, device count, settings and terms, with economics, reasons and plan files. No PyTorch here.

`gpuwise.plan(job, ...)` is the verb: help(gpuwise.api.plan) has its arguments.
"""

from typing import TYPE_CHECKING

from gpuwise.lazy import lazily

if TYPE_CHECKING:
    from gpuwise.plan.compare import CompareRow, Comparison
    from gpuwise.plan.file import load_plan, save_plan
    from gpuwise.plan.fit.types import FitResult, FitRow
    from gpuwise.plan.no_plan import NothingInside
    from gpuwise.plan.plan_result import PlanResult
    from gpuwise.plan.rejection import Rejection
    from gpuwise.plan.request import Request
    from gpuwise.plan.types import Plan

__getattr__ = lazily(
    __name__,
    {
        "compare": ("CompareRow", "Comparison"),
        "file": ("load_plan", "save_plan"),
        "fit.types": ("FitResult", "FitRow"),
        "no_plan": ("NothingInside",),
        "request": ("Request",),
        "rejection": ("Rejection",),
        "plan_result": ("PlanResult",),
        "types": ("Plan",),
    },
)
__all__ = [
    "CompareRow",
    "Comparison",
    "FitResult",
    "FitRow",
    "NothingInside",
    "Plan",
    "PlanResult",
    "Rejection",
    "Request",
    "load_plan",
    "save_plan",
]
