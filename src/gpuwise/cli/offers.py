"""gpuwise offers [FILTER], and gpuwise offers --refresh [PROVIDER]..."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gpuwise.cli.options import json_option

if TYPE_CHECKING:
    from gpuwise.refresh.outcome import RefreshOutcome
    from gpuwise.refresh.sources import ListRequest

EXIT_NOT_REFRESHED = 2  # at least one list was not taken


@click.command("offers", short_help="What can be rented, with prices.")
@click.argument("filter", metavar="[FILTER | PROVIDER]...", nargs=-1)
@click.option("--spot", is_flag=True, help="Only spot offers.")
@click.option("--unpriced", is_flag=True, help="Instead those that cannot be planned with, and why.")
@click.option("--refresh", is_flag=True, help="Fetch price lists: of PROVIDERs (aws, gpuhunt:aws), or all. Uses the network.")
@click.option(
    "--from", "files", metavar="FILE", multiple=True, help="Read a price list from a file instead; again for more pages."
)
@click.option("--accept", is_flag=True, help="Take a fetched list even if it differs too much from the last one.")
@click.option("--diff", is_flag=True, help="Prices that moved: by this refresh, or from the shipped ones.")
@click.option("--quarantined", is_flag=True, help="Instead rows of fetched lists that were not taken, and why.")
@json_option
def command(
    filter: tuple[str, ...],
    spot: bool,
    unpriced: bool,
    refresh: bool,
    files: tuple[str, ...],
    accept: bool,
    diff: bool,
    quarantined: bool,
    as_json: bool,
) -> None:
    """What can be rented, cheapest a device first, with the date of each price.

    FILTER is a chip, a provider, words of the name and conditions: "h100-sxm provider=aws". With --refresh, --diff and
    --quarantined PROVIDERs stand in its place. Nothing is fetched unless --refresh is there.
    """
    from gpuwise import api
    from gpuwise.cli.output import emit
    from gpuwise.errors import InputError

    if sum((spot, unpriced, refresh or bool(files), quarantined)) > 1 or (diff and (spot or unpriced or quarantined)):
        raise InputError("--spot, --unpriced, --refresh and --quarantined exclude each other.", ["leave out all but one"])
    if accept and not (refresh or files):
        raise InputError("--accept is about a list that is being fetched.", ["add --refresh, or --from FILE"])
    if refresh or files:
        _refresh(filter, files, accept=accept, diff=diff, as_json=as_json)
    elif diff:
        from gpuwise.report.price_lists import moves_report

        emit(api.price_moves(*filter), moves_report, as_json=as_json)
    elif quarantined:
        from gpuwise.report.price_lists import quarantine_report

        emit(api.quarantined_rows(*filter), quarantine_report, as_json=as_json)
    else:
        _list(" ".join(filter), spot=spot, unpriced=unpriced, as_json=as_json)


def _refresh(names: tuple[str, ...], files: tuple[str, ...], *, accept: bool, diff: bool, as_json: bool) -> None:
    from gpuwise import api
    from gpuwise.cli.output import emit
    from gpuwise.errors import InputError
    from gpuwise.report.price_lists import refresh_report

    if files and len(names) > 1:
        raise InputError("a file is one list, and several are named.", ["name one list, or none to have it recognised"])
    if files:
        outcomes: Sequence[RefreshOutcome] = (api.refresh_from(*files, name="".join(names), accept=accept),)
    else:
        outcomes = api.refresh_offers(*names, accept=accept, before=_name_hosts)
    emit(tuple(outcomes), lambda each: refresh_report(each, with_moves=diff), as_json=as_json)
    if not all(outcome.succeeded for outcome in outcomes):
        click.get_current_context().exit(EXIT_NOT_REFRESHED)


def _name_hosts(requests: Sequence[ListRequest]) -> None:
    from gpuwise.cli.streams import say

    hosts = dict.fromkeys(request.source.host for request in requests)
    say(f"asking {', '.join(hosts)} for price lists; nothing but the request is sent.")


def _list(text: str, *, spot: bool, unpriced: bool, as_json: bool) -> None:
    from gpuwise import api
    from gpuwise.cli.output import emit
    from gpuwise.report.catalog import offers_report, unpriced_report

    if unpriced:
        emit(api.unpriced_offers(text), unpriced_report, as_json=as_json)
        return
    rows = 0 if as_json else len(api.unpriced_offers(text))
    ignored = () if as_json else api.ignored_price_lists()
    emit(api.offers(text, spot=spot), lambda priced: offers_report(priced, unpriced=rows, ignored=ignored), as_json=as_json)
