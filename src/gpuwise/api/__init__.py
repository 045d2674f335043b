"""The verbs as functions: what the command line calls, and what `import gpuwise` offers."""

from gpuwise.api.listings import chips, offers, unpriced_offers
from gpuwise.api.recording import record
from gpuwise.api.verbs import compare, doctor, fit, forecast, plan, train

__all__ = ["chips", "compare", "doctor", "fit", "forecast", "offers", "plan", "record", "train", "unpriced_offers"]
