"""gpuwise chips [FILTER]"""

from __future__ import annotations

import click

from gpuwise.cli.options import json_option


@click.command("chips", short_help="The chips of the catalog.")
@click.argument("filter", metavar="[FILTER]", nargs=-1)
@json_option
def command(filter: tuple[str, ...], as_json: bool) -> None:
    """The chips of the catalog, all or those that pass FILTER.

    FILTER is words of the name and conditions: "memory>=24GB kind=gpu-consumer". Figures marked ? are unverified.
    """
    from gpuwise import api
    from gpuwise.cli.output import emit
    from gpuwise.report.catalog import chips_report

    emit(api.chips(" ".join(filter)), chips_report, as_json=as_json)
