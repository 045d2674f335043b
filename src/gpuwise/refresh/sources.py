"""Where each provider's list is published, and the adapter that reads it. A source is a row of SOURCES."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from gpuwise.errors import UnknownNameError, nearest
from gpuwise.hardware.refreshed import SPOT_ADVISOR
from gpuwise.refresh.adapters import azure, gpuhunt, runpod, skypilot, spot_advisor, vast
from gpuwise.refresh.fetch import FetchedDocument, HttpsClient
from gpuwise.refresh.listed import ParsedList, unreadable

SKYPILOT = "skypilot-catalog.s3.us-east-1.amazonaws.com"  # the mirror: it says when each file last changed, GitHub does not
GPUHUNT = "dstack-gpu-pricing.s3.eu-west-1.amazonaws.com"
MOST_PAGES = 64


@dataclass(frozen=True)
class PriceSource:
    """A published list.

    Attributes:
        name: as users write it, "skypilot".
        words: the list in words; {provider} is filled in.
        host: of the address, and the only one that it may redirect to.
        url: of the first document; {provider} is filled in.
        providers: that it lists, by id in gpuwise, with the list's own name.
        parse: the adapter.
        body: sent with the request; None for a GET.
        pages: address of the next document from one; None where a list is one document.
        resolves: from a first, small answer to the address of the list; None where `url` is it.
    """

    name: str
    words: str
    host: str
    url: str
    providers: Mapping[str, str]
    parse: Callable[..., ParsedList]
    body: object = None
    pages: Callable[[bytes], str] | None = None
    resolves: Callable[[str, bytes], str] | None = None

    def documents(self, provider: str, client: HttpsClient, *, etag: str) -> tuple[tuple[bytes, ...], FetchedDocument, str]:
        """The documents of a provider's list, the answer that has its tag and day, and its address. Raises PriceListError."""
        url, hosts = self.url.format(provider=self.providers[provider]), (self.host,)
        if self.resolves is not None:
            url = self.resolves(url, client.get(url, hosts=hosts).data)
        first = client.get(url, hosts=hosts, body=self.body, etag="" if self.pages else etag)
        documents, page = [first.data], first.data
        while self.pages is not None and (address := self.pages(page)):
            if len(documents) >= MOST_PAGES:
                raise unreadable(self.words_of(provider), f"it has more than {MOST_PAGES} pages")
            page = client.get(address, hosts=hosts).data
            documents.append(page)
        return tuple(documents), first, url

    @property
    def several(self) -> bool:
        """Whether it lists several providers."""
        return len(self.providers) > 1

    def words_of(self, provider: str) -> str:
        """The list in words."""
        return self.words.format(provider=provider)


def _archive(url: str, version: bytes) -> str:
    """gpuhunt names its newest version in a document of its own."""
    words = version.decode("ascii", "replace").strip()
    if not re.fullmatch(r"[0-9A-Za-z][0-9A-Za-z._-]{0,63}", words):
        raise unreadable("gpuhunt's catalog", f"its version is {words[:40]!r}")
    return f"{url.removesuffix('/version')}/{words}/catalog.zip"


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


SOURCES = {
    source.name: source
    for source in (
        PriceSource(
            "vast",
            vast.SOURCE,
            "console.vast.ai",
            "https://console.vast.ai/api/v0/bundles/",
            _same("vast"),
            vast.parse,
            body=vast.REQUEST,
        ),
        PriceSource(
            "runpod",
            runpod.SOURCE,
            "api.runpod.io",
            "https://api.runpod.io/graphql",
            _same("runpod"),
            runpod.parse,
            body=runpod.REQUEST,
        ),
        PriceSource(
            "azure",
            azure.SOURCE,
            "prices.azure.com",
            "https://prices.azure.com/api/retail/prices?" + urlencode({"currencyCode": "USD", "$filter": azure.FILTER}),
            _same("azure"),
            azure.parse,
            pages=azure.next_page,
        ),
        PriceSource(
            "skypilot",
            "SkyPilot's catalog v8 of {provider}",
            SKYPILOT,
            f"https://{SKYPILOT}/catalogs/v8/{{provider}}/vms.csv",
            _same("aws", "lambda", "nebius", "hyperstack", "runpod", "vast", "gcp", "verda", "seeweb"),
            skypilot.parse,
        ),
        PriceSource(
            "gpuhunt",
            "gpuhunt's catalog v3 of {provider}",
            GPUHUNT,
            f"https://{GPUHUNT}/v3/{{provider}}/version",
            {**_same("aws", "azure", "gcp", "nebius", "oci", "runpod"), **gpuhunt.FILES},
            gpuhunt.parse,
            resolves=_archive,
        ),
        PriceSource(
            SPOT_ADVISOR,
            spot_advisor.SOURCE,
            "spot-bid-advisor.s3.amazonaws.com",
            "https://spot-bid-advisor.s3.amazonaws.com/spot-advisor-data.json",
            _same(SPOT_ADVISOR),
            spot_advisor.parse,
        ),
    )
}
# The source that a provider's name alone means: the provider's own list where it has one without a key.
USUAL = {
    "aws": "skypilot",
    "azure": "azure",
    "gcp": "gpuhunt",
    "lambda": "skypilot",
    "nebius": "skypilot",
    "runpod": "runpod",
    "vast": "vast",
    SPOT_ADVISOR: SPOT_ADVISOR,
}


@dataclass(frozen=True)
class ListRequest:
    """One list that the user names: a source and a provider of it."""

    source: PriceSource
    provider: str

    @property
    def words(self) -> str:
        return self.source.words_of(self.provider)


def request_of(name: str) -> ListRequest:
    """The list of a name: "aws", or "gpuhunt:aws" with the source. Raises UnknownNameError."""
    first, colon, second = name.strip().lower().partition(":")
    source_name, provider = (first, second) if colon else (USUAL.get(first) or _only_source(first), first)
    source = SOURCES.get(source_name)
    if source is not None and provider in source.providers:
        return ListRequest(source, provider)
    listed = all_names()
    near = nearest(name.lower(), listed)
    ways = [f"nearest: {', '.join(near)}"] if near else []
    raise UnknownNameError(f"no price list of {name!r} is known.", [*ways, f"one of: {', '.join(listed)}"])


def requests_of(names: Sequence[str]) -> list[ListRequest]:
    """The lists of some names, in their order, each provider once; all usual ones for none. Raises UnknownNameError."""
    by_provider = {each.provider: each for each in map(request_of, names or USUAL)}
    return list(by_provider.values())


def all_names() -> list[str]:
    """Every name of a list."""
    return [*USUAL, *(f"{source.name}:{each}" for source in SOURCES.values() if source.several for each in source.providers)]


def _only_source(provider: str) -> str:
    return next((source.name for source in SOURCES.values() if provider in source.providers), "")
