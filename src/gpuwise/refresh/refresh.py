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
from gpuwise.refresh.listed import ListedRate, ParsedList
from gpuwise.refresh.outcome import FAILED, KEPT_LAST, TAKEN, UNCHANGED, RefreshOutcome, moves
from gpuwise.refresh.row_gates import ListedOffer, Quarantined, Yardstick, gated
from gpuwise.refresh.sources import ListRequest
from gpuwise.refresh.store import keep, last_good, locked

PARSER = 1  # a list that an older adapter read is fetched again, even with the same tag
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
    kept = last_good(request.provider)
    etag = kept.etag if kept is not None and _is_of(kept, request) else ""
    documents, answer, url = request.source.documents(request.provider, client, etag=etag)
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
        kept = last_good(request.provider)
        if content is None or (kept is not None and _is_of(kept, request) and kept.sha256 == content.digest):
            return _unchanged(request, kept)
        parsed = request.source.parse(content.documents, provider=request.provider)
        offers, refused = gated(parsed.rows, by)
        last = kept if kept is not None and kept.source == request.words else None  # another list is no measure of this one
        if request.provider == SPOT_ADVISOR:
            why = _failed_rates(parsed.rates, last.number_of_rates if last else 0)
        else:
            market = "marketplace" in provider(request.provider).price_kinds.values()
            why = failed_gates(offers, offers_of(last), by, marketplace=market)
        new = _list(request, content, offers, refused, parsed, now or datetime.now(UTC))
        taken = (accept or not why) and bool(offers or parsed.rates)
        if taken:
            keep(new)
        before = shipped_prices(shipped, request.provider) if last is None else prices_of(offers_of(last))
        return RefreshOutcome(
            request.provider,
            request.words,
            TAKEN if taken else KEPT_LAST,
            new.as_of if taken else kept.as_of if kept else "",
            len(offers) or len(parsed.rates),
            sum(each.rows for each in refused),
            tuple(why),
            parsed.remarks,
            moves(before, prices_of(offers)),
            overridden=taken and bool(why),
        )


def _is_of(kept: RefreshedList, request: ListRequest) -> bool:
    """Whether a kept list is that of a request, as this version reads it."""
    return kept.source == request.words and kept.parser == PARSER


def _unchanged(request: ListRequest, kept: RefreshedList | None) -> RefreshOutcome:
    if kept is None:
        raise PriceListError(f"the kept list of {request.provider} has gone meanwhile.", ["refresh it again"])
    rows = len(kept.offers) or kept.number_of_rates
    return RefreshOutcome(request.provider, request.words, UNCHANGED, kept.as_of, rows, kept.quarantined_rows)


def failed(request: ListRequest, error: PriceListError) -> RefreshOutcome:
    """The outcome of a list that could not be fetched, read or kept."""
    last = last_good(request.provider)
    return RefreshOutcome(request.provider, request.words, FAILED, last.as_of if last else "", why=(error.what,))


def _list(
    request: ListRequest,
    content: ListBytes,
    offers: Sequence[ListedOffer],
    refused: Sequence[Quarantined],
    parsed: ParsedList,
    now: datetime,
) -> RefreshedList:
    by_region: dict[str, dict[str, tuple[float, str]]] = {}
    for rate in parsed.rates:
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
        parsed.remarks,
    )


def _failed_rates(rates: Sequence[ListedRate], last: int) -> list[str]:
    if not rates:
        return ["it has no rate"]
    if len(rates) < LEAST_ROWS_SHARE * last:
        return [f"it has {len(rates):,} rates where the last one had {last:,}, fewer than {LEAST_ROWS_SHARE:.0%}"]
    return []
