"""The verbs as functions: what the command line calls, and what `import gpuwise` offers."""

from gpuwise.api.unpriced import unpriced_offers
from gpuwise.api.verbs import chips, compare, doctor, fit, forecast, offers, plan, train

__all__ = ["chips", "compare", "doctor", "fit", "forecast", "offers", "plan", "train", "unpriced_offers"]
