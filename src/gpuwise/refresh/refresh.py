"""One list refreshed: fetched or read, parsed, gated row by row, gated as a whole, kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from hashlib import sha256

from gpuwise.errors import PriceListError
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.providers import provider
from gpuwise.hardware.refreshed import SPOT_ADVISOR, RefreshedList
from gpuwise.refresh.fetch import HttpsClient
from gpuwise.refresh.kept_rows import offers_of, prices_of, shipped_prices, table_of
from gpuwise.refresh.list_gates import LEAST_ROWS_SHARE, failed_gates
from gpuwise.refresh.listed import ListedRate
from gpuwise.refresh.outcome import FAILED, KEPT_LAST, TAKEN, UNCHANGED, RefreshOutcome, moves
from gpuwise.refresh.row_gates import ListedOffer, Quarantined, Yardstick, gated
from gpuwise.refresh.sources import ListRequest
from gpuwise.refresh.store import keep, last_good, locked

PARSER = 1  # a list that an older adapter read is fetched again, whatever its tag
MOST_QUARANTINED = 2_000  # kinds of rows that a file names


@dataclass(frozen=True)
class ListBytes:
    """The documents of a list, with where they came from.

    Attributes:
        documents: in their order.
        url: address or path.
        etag: of the server; "" for a file.
        day: of the list's last change; None where unknown.
    """

    documents: tuple[bytes, ...]
    url: str
    etag: str = ""
    day: date | None = None

    @property
    def digest(self) -> str:
        digest = sha256()
        for document in self.documents:
            digest.update(document)
        return digest.hexdigest()


def shipped_yardstick(shipped: Catalog) -> Yardstick:
    """What rows are judged by, from a catalog without refreshed lists."""
    return Yardstick.of(shipped.chips, shipped.offer_rows, shipped.offers)


def fetched(request: ListRequest, client: HttpsClient) -> ListBytes | None:
    """The bytes of a list; None where the list is the one that is kept. Raises PriceListError."""
    last = last_good(request.provider)
    same = last is not None and last.source == request.words and last.parser == PARSER
    documents, answer, url = request.source.documents(request.provider, client, etag=last.etag if last and same else "")
    return None if answer.unchanged else ListBytes(documents, url, answer.etag, answer.list_day)


def refresh(
    request: ListRequest,
    content: ListBytes | None,
    *,
    shipped: Catalog,
    by: Yardstick,
    accept: bool = False,
    now: datetime | None = None,
) -> RefreshOutcome:
    """Takes a list, or says why the last good one stays. Raises PriceListError where it cannot be read or kept.

    Arguments:
        content: its bytes; None where the server says that they are those of the kept list.
        shipped: the catalog without refreshed lists.
        by: what its rows are judged by.
        accept: whether a list that fails gates of lists is taken all the same.
        now: the time of the fetch; None takes the clock.
    """
    with locked():
        last = last_good(request.provider)
        if content is None or (
            last and last.sha256 == content.digest and last.source == request.words and last.parser == PARSER
        ):
            rows = len(last.offers) or last.number_of_rates if last else 0
            waiting = last.quarantined_rows if last else 0
            return RefreshOutcome(request.provider, request.words, UNCHANGED, last.as_of if last else "", rows, waiting)
        parsed = request.source.parse(content.documents, provider=request.provider)
        new, refused = gated(parsed.rows, by)
        if last is not None and last.source != request.words:
            last = None  # another list of the same provider: its rows are no measure of this one's
        why = failed_gates(
            new, offers_of(last), by, marketplace="marketplace" in provider(request.provider).price_kinds.values()
        )
        if request.provider == SPOT_ADVISOR:
            why = _failed_rates(parsed.rates, last.number_of_rates if last else 0)
        kept = _list(request, content, new, refused, parsed.rates, parsed.remarks, now or datetime.now(UTC))
        taken = accept or not why
        if taken and not new and not parsed.rates:
            taken = False  # nothing to take
        before = shipped_prices(shipped, request.provider) if last is None else prices_of(offers_of(last))
        outcome = RefreshOutcome(
            request.provider,
            request.words,
            TAKEN if taken else KEPT_LAST,
            kept.as_of if taken else last.as_of if last else "",
            len(new) or len(parsed.rates),
            sum(each.rows for each in refused),
            tuple(why),
            parsed.remarks,
            moves(before, prices_of(new)),
            overridden=taken and bool(why),
        )
        if taken:
            keep(kept)
        return outcome


def failed(request: ListRequest, error: PriceListError) -> RefreshOutcome:
    """The outcome of a list that could not be fetched, read or kept."""
    last = last_good(request.provider)
    return RefreshOutcome(request.provider, request.words, FAILED, last.as_of if last else "", why=(error.what,))


def _list(
    request: ListRequest,
    content: ListBytes,
    offers: Sequence[ListedOffer],
    refused: Sequence[Quarantined],
    rates: Sequence[ListedRate],
    remarks: tuple[str, ...],
    now: datetime,
) -> RefreshedList:
    by_region: dict[str, dict[str, tuple[float, str]]] = {}
    for rate in rates:
        by_region.setdefault(rate.region, {})[rate.instance] = (rate.share_per_month, rate.label)
    day = now.date() if content.day is None else min(content.day, now.date())
    named, more = refused[:MOST_QUARANTINED], sum(each.rows for each in refused[MOST_QUARANTINED:])
    quarantined = [(each.row, each.why, each.rows) for each in named]
    if more:
        quarantined.append(("(others)", "not named here, there are too many", more))
    return RefreshedList(
        request.provider,
        request.words,
        content.url,
        now.isoformat(timespec="seconds"),
        day.isoformat(),
        content.etag,
        content.digest,
        PARSER,
        tuple(map(table_of, offers)),
        by_region,
        tuple(quarantined),
        remarks,
    )


def _failed_rates(rates: Sequence[ListedRate], last: int) -> list[str]:
    if not rates:
        return ["it has no rate"]
    if len(rates) < LEAST_ROWS_SHARE * last:
        return [f"it has {len(rates):,} rates where the last one had {last:,}, fewer than {LEAST_ROWS_SHARE:.0%}"]
    return []
