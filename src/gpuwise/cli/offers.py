"""gpuwise offers [FILTER]"""

from __future__ import annotations

import click

from gpuwise.cli.options import json_option


@click.command("offers", short_help="What can be rented, with prices.")
@click.argument("filter", metavar="[FILTER]", nargs=-1)
@click.option("--spot", is_flag=True, help="Only spot offers.")
@click.option("--unpriced", is_flag=True, help="Instead those that cannot be planned with, and why.")
@json_option
def command(filter: tuple[str, ...], spot: bool, unpriced: bool, as_json: bool) -> None:
    """What can be rented, cheapest a device first, with the date of each price.

    FILTER is a chip, a provider, words of the name and conditions: "h100-sxm provider=aws".
    """
    from gpuwise import api
    from gpuwise.cli.output import emit
    from gpuwise.errors import InputError
    from gpuwise.report.catalog import offers_report, unpriced_report

    text = " ".join(filter)
    if spot and unpriced:
        raise InputError("--spot and --unpriced exclude each other: what has no price has no terms.", ["leave out one"])
    if unpriced:
        emit(api.unpriced_offers(text), unpriced_report, as_json=as_json)
        return
    rows = 0 if as_json else len(api.unpriced_offers(text))
    emit(api.offers(text, spot=spot), lambda priced: offers_report(priced, unpriced=rows), as_json=as_json)
