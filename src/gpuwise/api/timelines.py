"""step_timeline: one step over time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from gpuwise.api.devices import target_of
from gpuwise.api.forecasting import forecast_with_trace
from gpuwise.api.plain_arguments import plainly
from gpuwise.step_settings import ForecastSettings

if TYPE_CHECKING:
    from gpuwise.cost.timeline.step import StepTimeline
    from gpuwise.job import Job


@plainly
def step_timeline(job: str | Job, *, on: str, **settings: Unpack[ForecastSettings]) -> StepTimeline:
    """One step over time: the streams of a rank that is recorded on its mesh, the ranks of a pipeline, or one composed rank.

    Its `forecast` is the result of `forecast`. gpuwise.report.timeline_picture draws it. Arguments and errors are those of
    `forecast`.
    """
    from gpuwise.cost.timeline.step import step_timeline as timeline_of

    forecast, priced = forecast_with_trace(job, on, settings)
    cluster = priced.device.cluster
    ranks = priced.source.step_traces(target_of(cluster.chip)).ranks(forecast.strategy)
    return replace(timeline_of(ranks, cluster, priced.forecast), forecast=forecast)
