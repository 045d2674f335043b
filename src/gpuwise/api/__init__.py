"""The verbs as functions, for the command line and for `import gpuwise`."""

from typing import TYPE_CHECKING

from gpuwise.lazy import lazily

if TYPE_CHECKING:
    from gpuwise.api.buying import buy
    from gpuwise.api.classical import classical_forecast
    from gpuwise.api.comparing import compare
    from gpuwise.api.config_files import forecast_config
    from gpuwise.api.exporting import export
    from gpuwise.api.fitting import fit
    from gpuwise.api.forecasting import forecast, memory_timeline
    from gpuwise.api.installation import doctor
    from gpuwise.api.kernels import kernel, roofline
    from gpuwise.api.listings import chips, offers, unpriced_offers
    from gpuwise.api.measuring import measure
    from gpuwise.api.planning import plan
    from gpuwise.api.recording import record
    from gpuwise.api.scaling import scale
    from gpuwise.api.serving import serve_plan
    from gpuwise.api.serving_check import serve_check
    from gpuwise.api.sweeping import sweep
    from gpuwise.api.timelines import step_timeline
    from gpuwise.api.training import Trainer, train
    from gpuwise.api.validating import validate

__getattr__ = lazily(
    __name__,
    {
        "buying": ("buy",),
        "classical": ("classical_forecast",),
        "comparing": ("compare",),
        "config_files": ("forecast_config",),
        "exporting": ("export",),
        "fitting": ("fit",),
        "forecasting": ("forecast", "memory_timeline"),
        "installation": ("doctor",),
        "kernels": ("kernel", "roofline"),
        "listings": ("chips", "offers", "unpriced_offers"),
        "measuring": ("measure",),
        "planning": ("plan",),
        "recording": ("record",),
        "scaling": ("scale",),
        "serving_check": ("serve_check",),
        "serving": ("serve_plan",),
        "sweeping": ("sweep",),
        "timelines": ("step_timeline",),
        "training": ("Trainer", "train"),
        "validating": ("validate",),
    },
)
__all__ = [
    "Trainer",
    "buy",
    "chips",
    "classical_forecast",
    "compare",
    "doctor",
    "export",
    "fit",
    "forecast",
    "forecast_config",
    "kernel",
    "measure",
    "memory_timeline",
    "offers",
    "plan",
    "record",
    "roofline",
    "scale",
    "serve_check",
    "serve_plan",
    "step_timeline",
    "sweep",
    "train",
    "unpriced_offers",
    "validate",
]
