"""The verbs as functions: what the command line calls, and what `import gpuwise` offers."""

from typing import TYPE_CHECKING

from gpuwise.lazy import lazily

if TYPE_CHECKING:
    from gpuwise.api.kernels import kernel, roofline
    from gpuwise.api.listings import chips, offers, unpriced_offers
    from gpuwise.api.measuring import measure
    from gpuwise.api.recording import record
    from gpuwise.api.training import Trainer, train
    from gpuwise.api.validating import validate
    from gpuwise.api.verbs import compare, doctor, fit, forecast, memory_timeline, plan

__getattr__ = lazily(
    __name__,
    {
        "kernels": ("kernel", "roofline"),
        "listings": ("chips", "offers", "unpriced_offers"),
        "measuring": ("measure",),
        "recording": ("record",),
        "training": ("Trainer", "train"),
        "validating": ("validate",),
        "verbs": ("compare", "doctor", "fit", "forecast", "memory_timeline", "plan"),
    },
)
__all__ = [
    "Trainer",
    "chips",
    "compare",
    "doctor",
    "fit",
    "forecast",
    "kernel",
    "measure",
    "memory_timeline",
    "offers",
    "plan",
    "record",
    "roofline",
    "train",
    "unpriced_offers",
    "validate",
]
