"""Price lists: fetched when the user says so, compared, and listed with what was left out of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuwise.errors import FileFormatError, InputError, PriceListError
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.refreshed import RefreshedList, read_list, refreshed_files
from gpuwise.hardware.today import today
from gpuwise.refresh.fetch import HttpsClient
from gpuwise.refresh.kept_rows import moves_from_shipped
from gpuwise.refresh.outcome import PriceMove, RefreshOutcome
from gpuwise.refresh.recognised import list_of_files, request_for
from gpuwise.refresh.refresh import failed, fetched, refresh, shipped_yardstick
from gpuwise.refresh.sources import ListRequest, requests_of
from gpuwise.results.listings import QuarantinedRow


def refresh_offers(
    *names: str,
    accept: bool = False,
    client: HttpsClient | None = None,
    before: Callable[[Sequence[ListRequest]], None] | None = None,
) -> tuple[RefreshOutcome, ...]:
    """Fetches price lists over the network. A list that cannot be fetched or does not pass leaves the last good one in place.

    Arguments:
        names: providers ("aws"), or lists of a source ("gpuhunt:aws"); none for the usual list of every provider.
        accept: whether a list that fails the gates of lists is taken all the same. Rows never pass their own gates so.
        client: what fetches; None takes one with the usual limits.
        before: called with the lists before anything is fetched.

    Raises UnknownNameError for an unknown name, InputError where nothing may be kept on disk.
    """
    requests = requests_of(names)
    if before is not None:
        before(requests)
    shipped = Catalog(now=today())
    by, outcomes = shipped_yardstick(shipped), []
    for request in requests:
        try:
            content = fetched(request, client or HttpsClient())
            outcomes.append(refresh(request, content, shipped=shipped, by=by, accept=accept))
        except PriceListError as error:
            outcomes.append(failed(request, error))
    return tuple(outcomes)


def refresh_from(*files: str, name: str = "", accept: bool = False) -> RefreshOutcome:
    """Reads a price list from a file instead of fetching it: the same bytes, the same gates.

    Arguments:
        files: the pages of one list.
        name: the list, as for refresh_offers; "" recognises it.
        accept: as for refresh_offers.

    Raises FileFormatError, InputError or UnknownNameError.
    """
    if not files:
        raise InputError("no file is named.", ["gpuwise offers --from FILE"])
    content, shipped = list_of_files(files), Catalog(now=today())
    request = request_for(files, content, name=name)
    try:
        return refresh(request, content, shipped=shipped, by=shipped_yardstick(shipped), accept=accept)
    except PriceListError as error:
        return failed(request, error)


def price_moves(*names: str) -> tuple[PriceMove, ...]:
    """Prices of the kept lists that differ from the shipped ones, the largest changes first. names: providers; none for all."""
    shipped = Catalog(now=today())
    kept = [each for each in kept_lists() if not names or each.provider in names]
    moved = [move for each in kept for move in moves_from_shipped(each, shipped)]
    return tuple(sorted(moved, key=lambda move: -abs(move.change or 0)))


def quarantined_rows(*names: str) -> tuple[QuarantinedRow, ...]:
    """Rows of the kept lists that were not taken, with the reason. names: providers; none for all."""
    return tuple(
        QuarantinedRow(each.provider, each.source, each.as_of, row, why, rows)
        for each in kept_lists()
        if not names or each.provider in names
        for row, why, rows in each.quarantined
    )


def kept_lists() -> tuple[RefreshedList, ...]:
    """The lists that are kept and can be read; `doctor` names the others."""
    lists = []
    for path in refreshed_files():
        try:
            lists.append(read_list(path))
        except FileFormatError:
            continue
    return tuple(lists)
