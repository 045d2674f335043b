"""The price of one step on a device, used by `forecast`, and by `train` and `validate` beside real steps."""

from __future__ import annotations

from gpuwise.api.devices import target_of
from gpuwise.api.measured import as_last_measured
from gpuwise.api.source import StepSource
from gpuwise.cost import Forecast
from gpuwise.cost.inputs import READY, DataPipeline
from gpuwise.hardware.cluster import Cluster
from gpuwise.plan.pricing.step import StepPricer
from gpuwise.strategy import Strategy
from gpuwise.trace import Trace


def step_price(
    source: StepSource,
    cluster: Cluster,
    strategy: Strategy,
    *,
    history: bool,
    data: DataPipeline = READY,
    usd_per_hour: float | None = None,
) -> tuple[Forecast, Trace]:
    """The forecast of a step, with the trace of one rank.

    Arguments:
        history: whether the chip is this machine's and step times that `validate` measured on it are taken.
        data, usd_per_hour: as for gpuwise.cost.price.price_ranks.

    Raises the errors of tracing and pricing.
    """
    pricer = StepPricer(source.step_traces(target_of(cluster.chip)), data=data)
    forecast, trace = pricer.forecast(strategy, cluster, usd_per_hour=usd_per_hour), pricer.trace(strategy)
    return as_last_measured(forecast, trace, strategy, cluster.chip) if history else forecast, trace
