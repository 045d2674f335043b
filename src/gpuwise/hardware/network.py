"""What joins machines, in words: "100 Gbit Ethernet", "8 x 400 Gbit InfiniBand", "ib-ndr", "25 GB/s a device"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuwise.errors import InputError, UnknownNameError, nearest
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.links import network_technology
from gpuwise.hardware.names import words
from gpuwise.hardware.types import Link, Source
from gpuwise.notes import Note
from gpuwise.notes.parallel import named_network, network_not_in_catalog

EXAMPLES = '--network "100 Gbit Ethernet"'
LONGEST = 100  # characters of a network
_FASTEST_BYTES_PER_S = 1e15  # more is a slip of the hand: a hundred thousand of the fastest ports

_SERVES = re.compile(
    r"(?:/\s*|\b(?:a|per|each|every)\s+)(device|gpu|chip|accelerator|machine|node|host|server)\b", re.IGNORECASE
)
_DEVICES = {"device", "gpu", "chip", "accelerator"}
_COUNT = re.compile(r"(\d{1,4})\s*[x×*]\s*(?=\S)", re.ASCII | re.IGNORECASE)
_RATE = re.compile(r"(?<![\w.-])(\d{1,6}(?:\.\d{1,6})?)\s*([kMGT])([A-Za-z]*(?:/s)?)(?![\w-])", re.ASCII | re.IGNORECASE)
_PREFIX = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
# Networks are sold in bits: only a capital B, or the word, means bytes. GbE and GE are Ethernet's own.
_BITS, _BYTES = {"", "b", "bit", "bits", "bps", "be", "e"}, {"B", "Bps", "byte", "bytes", "Byte", "Bytes"}
# Words to the technologies of links: a rate is looked for in all of them, and is else priced as the first.
_TECHNOLOGIES = {
    "ethernet": ("ethernet", "roce"),
    "tcp": ("ethernet",),
    "roce": ("roce",),
    "infiniband": ("infiniband",),
    "ib": ("infiniband",),
    "edr": ("infiniband",),
    "hdr": ("infiniband",),
    "ndr": ("infiniband",),
    "xdr": ("infiniband",),
    "efa": ("efa", "efa-1"),
    "slingshot": ("slingshot",),
}
_PLAIN_WORDS = {"network", "link", "links", "port", "ports", "nic", "nics", "rail", "rails", "of", "with", "over"}


@dataclass(frozen=True)
class Network:
    """What joins machines.

    Attributes:
        link: the link, with the bandwidth of one machine or one device.
        serves: whose bandwidth that is: "machine" or "device".
        notes: what was understood, and which figures are another network's.
    """

    link: Link
    serves: str = "machine"
    notes: tuple[Note, ...] = ()


def parse_network(text: str, *, catalog: Catalog) -> Network:
    """The network that a text names: a link between machines of the catalog by id or name, or a rate with its technology.

    The figure is of one machine, unless the text ends in "a device"; "8 x" before it counts ports. A rate that the catalog
    has for the technology is that link; any other is priced as its technology, with the latency of its nearest link.

    Raises InputError for what cannot be read, UnknownNameError for an unknown or ambiguous name.
    """
    if not isinstance(text, str) or not text.strip() or len(text) > LONGEST:
        raise InputError(f"cannot read the network {text!r}.", [EXAMPLES])
    body, serves = text.strip(), "machine"
    if match := _SERVES.search(body):
        serves = "device" if match[1].lower() in _DEVICES else "machine"
        body = f"{body[: match.start()]} {body[match.end() :]}".strip()
    count = 1
    if match := _COUNT.match(body):
        count, body = int(match[1]), body[match.end() :]
    links = [link for link in catalog.links.values() if link.kind == "scale-out" and link.per_direction_bytes_per_s]
    named = _by_name(body, links, catalog)
    if count < 1:
        raise InputError(f"the network {text!r} has no ports.", [EXAMPLES])
    if named is not None and named.serves == "machine" and serves == "device":
        raise InputError(f"the bandwidth of {named.name} is a machine's, not a device's.", [f"--network {named.id}"])
    link, notes = (named, ()) if named is not None else _by_rate(text, body, links, count=count, serves=serves)
    link = _times(link, count)
    rate = link.per_direction_bytes_per_s or 0.0
    source = link.source_of("per_direction_bytes_per_s").text
    one_port = serves == "machine" and link.serves == "port" and count == 1
    note = named_network(link=link.name, bytes_per_s=rate, serves=serves, source=source, one_port=one_port)
    return Network(link, serves, (note, *notes))


def _by_name(text: str, links: Sequence[Link], catalog: Catalog) -> Link | None:
    """The link that has every word in its id or in its name; None if none does."""
    name = text.strip().lower()
    link = catalog.links.get(name)
    if link is not None and link not in links:
        raise InputError(f"{link.name} does not join machines.", [EXAMPLES])
    if link is not None:
        return link
    parts = words(name)
    for tokens in (lambda link: words(link.id), lambda link: words(link.name)):
        fitting = [link for link in links if parts and set(parts) <= set(tokens(link))]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            raise UnknownNameError(f"the network {text!r} is ambiguous.", [f"one of: {', '.join(link.id for link in fitting)}"])
    return None


def _by_rate(text: str, body: str, links: Sequence[Link], *, count: int, serves: str) -> tuple[Link, tuple[Note, ...]]:
    """A link of a rate in words; the catalog's own where it has one of that rate and technology.

    Without a technology it is what so many ports make likely: where each device has one of its own, the machine has RDMA.
    """
    match = _RATE.search(body)
    unit = match[3].removesuffix("/s") if match else ""
    if match is None or (unit not in _BYTES and unit.lower() not in _BITS):
        raise _unknown(text, words(body), links)
    rate = float(match[1]) * _PREFIX[match[2].lower()] / (1 if unit in _BYTES else 8)
    if not 0 < rate <= _FASTEST_BYTES_PER_S:
        raise InputError(f"a network of {text!r} makes no sense.", [EXAMPLES])
    rest = [*words(body[: match.start()]), *words(body[match.end() :])]
    if unit.lower() in ("be", "e"):
        rest.append("ethernet")
    for word in rest:
        if word not in _TECHNOLOGIES and word not in _PLAIN_WORDS:
            raise _unknown(text, [word], links)
    spoken = [word for word in rest if word in _TECHNOLOGIES]
    technologies = [name for word in spoken for name in _TECHNOLOGIES[word]]
    alike = [link for name in technologies for link in links if link.technology == name]
    ports = [link for link in alike if link.serves == "port"] or alike
    exact = [link for link in ports if link.per_direction_bytes_per_s == rate]
    if exact:
        return exact[0], ()
    likely = "roce" if serves == "device" else network_technology(count * rate)
    slower = [link for link in ports if (link.per_direction_bytes_per_s or 0.0) <= rate]
    fastest = max(slower, key=lambda link: link.per_direction_bytes_per_s or 0.0, default=None)
    technology = technologies[0] if technologies else likely
    if fastest is not None:
        technology = fastest.technology  # Ethernet beyond what the catalog has for RoCE is RoCE, too
    first = [link for link in links if link.technology == technology and link.latency_s is not None]
    nearest_link = min(first, key=lambda link: abs((link.per_direction_bytes_per_s or 0.0) - rate), default=None)
    name = f"{rate * 8 / 1e9:,.6g} Gbit/s {_technology_name(spoken)}"
    link = Link(
        f"network-{rate * 8 / 1e9:.6g}g",
        name,
        "scale-out",
        technology=technology,
        fabric="network",
        serves="port",
        links_per_device=1,
        per_link_bytes_per_s=rate,
        per_direction_bytes_per_s=rate,
        latency_s=None if nearest_link is None else nearest_link.latency_s,
        source=Source("named by --network", ""),
    )
    latency_of = "" if nearest_link is None else nearest_link.name
    return link, (network_not_in_catalog(network=name, technology=technology, latency_of=latency_of),)


def _technology_name(technologies: Sequence[str]) -> str:
    names = {"infiniband": "InfiniBand", "ib": "InfiniBand", "ethernet": "Ethernet", "tcp": "TCP", "roce": "RoCE"}
    return " ".join(dict.fromkeys(names.get(word, word.upper()) for word in technologies)) or "network"


def _times(link: Link, count: int) -> Link:
    """So many of a link side by side. A bandwidth that collectives reached over one of them is not theirs."""
    if count == 1:
        return link
    return replace(
        link,
        id=f"{count}x-{link.id}",
        name=f"{count} × {link.name}",
        links_per_device=count * (link.links_per_device or 1),
        per_direction_bytes_per_s=count * (link.per_direction_bytes_per_s or 0.0),
        allreduce_busbw_bytes_per_s=None,
        allreduce_condition=None,
    )


def _unknown(text: str, unknown: Sequence[str], links: Sequence[Link]) -> UnknownNameError:
    names = [*_TECHNOLOGIES, *(link.id for link in links), *(word for link in links for word in words(link.name))]
    near = list(dict.fromkeys(name for word in unknown for name in nearest(word, list(dict.fromkeys(names)))))
    ids = ", ".join(link.id for link in links)
    way = f"nearest: {', '.join(near[:5])}" if near else f"one of: {ids}"
    return UnknownNameError(f"cannot read the network {text!r}.", [f"say its rate: {EXAMPLES}", way])
