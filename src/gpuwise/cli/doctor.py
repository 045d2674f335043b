"""gpuwise doctor"""

from __future__ import annotations

import click

from gpuwise.cli.options import json_option


@click.command("doctor", short_help="This installation and machine.")
@json_option
def command(as_json: bool) -> None:
    """Versions, devices, catalog dates, configuration files read, and shipped presets."""
    from gpuwise import api
    from gpuwise.cli.output import emit
    from gpuwise.report.doctor import doctor_report

    emit(api.doctor(), doctor_report, as_json=as_json)
