"""gpuwise offers [FILTER]"""

from __future__ import annotations

import click

from gpuwise.cli.options import json_option


@click.command("offers", short_help="What can be rented, with prices.")
@click.argument("filter", metavar="[FILTER]", nargs=-1)
@click.option("--spot", is_flag=True, help="Only spot offers.")
@json_option
def command(filter: tuple[str, ...], spot: bool, as_json: bool) -> None:
    """What can be rented, cheapest a device first, with the date of each price.

    FILTER is a chip, a provider, words of the name and conditions: "h100-sxm provider=aws".
    """
    from gpuwise import api
    from gpuwise.cli.output import emit
    from gpuwise.report.catalog import offers_report

    emit(api.offers(" ".join(filter), spot=spot), offers_report, as_json=as_json)
