"""gpuwise forecast JOB --on DEVICE --config FILE"""

from __future__ import annotations

import click

from gpuwise.cli.options import Function
from gpuwise.export.targets import TARGETS
from gpuwise.step_settings import ForecastSettings


def config_option(function: Function) -> Function:
    """--config and --config-kind."""
    kind = click.option("--config-kind", metavar="TRAINER", help=f"Whose file it is: {', '.join(TARGETS)}.")
    file = click.option("--config", metavar="FILE", help="Forecast what this file of another trainer says; flags come first.")
    return file(kind(function))


def forecast_file(job: str, on: str, config: str, kind: str | None, settings: ForecastSettings, *, as_json: bool) -> None:
    """Prints the forecast of a file, and what would be cheaper."""
    from gpuwise import api
    from gpuwise.cli.output import emit
    from gpuwise.report.config_forecast import config_forecast_report

    result = api.forecast_config(job, on=on, config=config, kind=kind, **settings)
    emit(result, config_forecast_report, as_json=as_json)
