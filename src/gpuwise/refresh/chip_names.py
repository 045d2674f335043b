"""The chip that a row of a price list sells: from the instance and from name and memory together, never from a name alone.

"H100" is three products and "A100" four. A name gives candidates, its form factor and the memory of one device leave some of
them; where more than one is left, or none, the row is not taken, and the reason says what would decide. An instance that the
catalog knows ("p5.48xlarge") decides, and the row's own name, memory and count must then agree with it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuwise.hardware.pricelist import OfferRow
from gpuwise.hardware.types import Chip
from gpuwise.refresh.listed import ListedRow

# Lists write marketed GB, GiB, or what the driver leaves of them: 22.5 to 24 for an L4, 45 to 48 for an L40S.
MEMORY_TOLERANCE = 0.075
# Names of families whose ids in the catalog do not follow from them; the first that fits counts. On lower-case text in which
# spaces separate words.
_FAMILIES: tuple[tuple[str, str], ...] = (
    (r"gb300(?!\d)", "gb300-288gb"),
    (r"gb200(?!\d)", "gb200-186gb"),
    (r"gh200(?!\d)", "gh200-96gb"),
    (r"b300(?!\d)", "b300-288gb-sxm"),
    (r"b200(?!\d)", "b200-180gb-sxm"),
    (r"h200(?!\d)", "h200-141gb-sxm h200-141gb-nvl"),
    (r"h100(?!\d)", "h100-80gb-sxm h100-80gb-pcie h100-94gb-nvl"),
    (r"h20\b", "h20-96gb"),
    (r"a100(?!\d)", "a100-40gb-pcie a100-40gb-sxm a100-80gb-pcie a100-80gb-sxm"),
    (r"v100s", "v100s-pcie-32gb"),
    (r"v100(?!\d)", "v100-pcie-16gb v100-pcie-32gb v100-sxm2-16gb v100-sxm2-32gb"),
    (r"p100(?!\d)", "p100-pcie-12gb p100-pcie-16gb p100-sxm2-16gb"),
    (r"\bt4g\b", "t4g"),
    (r"\bt4\b", "t4"),
    (r"\bl40s\b", "l40s"),
    (r"\bl40\b", "l40"),
    (r"\bl4\b", "l4"),
    (r"\ba10g\b", "a10g"),
    (r"\ba10\b", "a10"),
    (r"\ba30\b", "a30"),
    (r"\ba40\b", "a40"),
    (r"\bp40\b", "p40"),
    (r"^(?:nvidia )?(?:tesla )?p4$", "p4"),
    (r"^(?:nvidia )?a2$", "a2"),
    (r"mi355x", "mi355x"),
    (r"mi325x", "mi325x"),
    (r"mi300x", "mi300x"),
    (r"mi250x", "mi250x"),
    (r"mi250\b", "mi250"),
    (r"mi210\b", "mi210"),
    (r"mi100\b", "mi100"),
    (r"pro ?6000(?:.*(?:server|\bse\b)| ?s\b)", "rtx-pro-6000-blackwell-server"),
    (r"pro ?6000.*max ?q", "rtx-pro-6000-blackwell-max-q"),
    (r"pro ?6000(?:.*(?:workstation|\bwk\b)| ?ws\b)", "rtx-pro-6000-blackwell"),
    (r"pro ?6000", "rtx-pro-6000-blackwell rtx-pro-6000-blackwell-server rtx-pro-6000-blackwell-max-q"),
    (r"6000 ?ada|6000 ada generation", "rtx-6000-ada"),
    (r"5000 ?ada", "rtx-5000-ada"),
    (r"4500 ?ada", "rtx-4500-ada"),
    (r"4000 sff ada", "rtx-4000-sff-ada"),
    (r"4000 ?ada", "rtx-4000-ada"),
    (r"2000 ?ada", "rtx-2000-ada"),
    (r"\b(?:rtx ?)?a6000\b", "rtx-a6000"),
    (r"\b(?:rtx ?)?a5500\b", "rtx-a5500"),
    (r"\b(?:rtx ?)?a5000\b", "rtx-a5000"),
    (r"\b(?:rtx ?)?a4500\b", "rtx-a4500"),
    (r"\b(?:rtx ?)?a4000\b", "rtx-a4000"),
    (r"\b(?:rtx ?)?a2000\b", "rtx-a2000-6gb rtx-a2000-12gb"),
    (r"\bq(?:uadro)? ?rtx ?8000\b|\brtx ?8000\b", "quadro-rtx-8000"),
    (r"\bq(?:uadro)? ?rtx ?6000\b", "quadro-rtx-6000"),
    (r"\bq(?:uadro)? ?rtx ?5000\b|\brtx ?5000\b", "quadro-rtx-5000"),
    (r"\brtx ?6000\b", "quadro-rtx-6000 rtx-6000-ada"),
)
_GEFORCE = re.compile(r"\b(rtx|gtx) ?(\d{3,4}) ?(s ?ti|ti ?s(?:uper)?|ti|s(?:uper)?|d)?\b( ?(?:laptop|mobile|max ?q))?")
_SUFFIXES = {
    "sti": "-ti-super",
    "tis": "-ti-super",
    "tisuper": "-ti-super",
    "ti": "-ti",
    "s": "-super",
    "super": "-super",
    "d": "-d",
}
_FORMS = (("sxm", r"sxm|hbm3\b|\bhgx"), ("pcie", r"pcie?\b"), ("nvl", r"nvl(?!ink)"))  # hbm3: RunPod's name of the H100 SXM
_COUNT = re.compile(r"^(\d+)x[-_ ]")
_SPACES = re.compile(r"[\s_\-/(),]+")


@dataclass(frozen=True)
class KnownInstance:
    """What the catalog knows an instance to have: its chip and number of devices."""

    chip_id: str
    count: float


class RowRefused(Exception):  # noqa: N818 - an answer of a gate, caught where rows are counted
    """Why a row of a list is not taken."""


def known_instances(rows: Iterable[OfferRow]) -> dict[tuple[str, str], KnownInstance]:
    """By provider and instance, from the catalog's own rows."""
    return {
        (row.provider, row.instance): KnownInstance(row.chip_id, row.values["count"])
        for row in rows
        if row.chip_id is not None and row.values.get("count") is not None
    }


def chip_and_count(
    row: ListedRow, *, chips: Mapping[str, Chip], instances: Mapping[tuple[str, str], KnownInstance]
) -> tuple[str, float]:
    """The id of a row's chip, and its devices. Raises RowRefused with the reason."""
    stated = _COUNT.match(row.instance)
    if stated and row.count is not None and float(stated[1]) != row.count:
        raise RowRefused(f"the instance is of {stated[1]} devices by its name, of {row.count:g} by the list")
    instance = instances.get((row.provider, row.instance))
    if instance is not None:
        _agree(row, instance, chips)
        return instance.chip_id, instance.count
    if not row.names:
        raise RowRefused("the catalog does not know this instance, and the list names no accelerator")
    if row.count is None:
        raise RowRefused("the list does not say how many devices it has")
    return _by_name_and_memory(row, chips), row.count


def _agree(row: ListedRow, instance: KnownInstance, chips: Mapping[str, Chip]) -> None:
    """Raises RowRefused where the row contradicts what the catalog knows of its instance."""
    what = f"{row.instance} has {instance.count:g} x {instance.chip_id}"
    if row.count is not None and instance.count >= 1 and row.count != instance.count:
        raise RowRefused(f"{what}, the list says {row.count:g}")
    families = [family for name in row.names if (family := _family(name, chips))]
    if families and not any(instance.chip_id in family for family in families):
        raise RowRefused(f"{what}, the list says {row.names[0]}")
    memory = chips[instance.chip_id].memory_bytes
    if row.memory_gib is not None and memory is not None and instance.count >= 1 and not _same(memory, row.memory_gib):
        raise RowRefused(f"{what} of {memory / 2**30:g} GB, the list says {row.memory_gib:.4g} GB")


def _by_name_and_memory(row: ListedRow, chips: Mapping[str, Chip]) -> str:
    names = [row.instance, *row.names]
    family = next((family for name in names if (family := _family(name, chips))), ())
    label = row.names[0] if row.names else row.instance
    if not family:
        raise RowRefused(f"{label} is no chip of the catalog")
    if row.memory_gib is None:
        raise RowRefused(f"{label} without its memory: a name alone is not taken ({_either(family)})")
    fitting = [id_ for id_ in family if _same(chips[id_].memory_bytes, row.memory_gib)]
    if not fitting:
        raise RowRefused(f"{label} of {row.memory_gib:.4g} GB: the catalog has {_either(family)}")
    written = " ".join(_plain(name) for name in names)
    forms = [form for form, pattern in _FORMS if re.search(pattern, written)]
    of_form = [id_ for id_ in fitting if any(form in id_ for form in forms)] if forms else fitting
    if forms and not of_form and not any(form in id_ for id_ in family for form, _ in _FORMS):
        of_form = fitting  # a product of one form: its id need not name it
    if len(of_form) != 1:
        which = _either(of_form or fitting)
        raise RowRefused(f"{label} of {row.memory_gib:.4g} GB is {which}: the list does not say which")
    return of_form[0]


def _family(name: str, chips: Collection[str]) -> tuple[str, ...]:
    """The chips that a text may name; none where it names none of the catalog."""
    words = _plain(name)
    for pattern, ids in _FAMILIES:
        if re.search(pattern, words):
            return tuple(id_ for id_ in ids.split() if id_ in chips)
    if match := _GEFORCE.search(words):
        series, digits, suffix, laptop = match.groups()
        id_ = f"{series}-{digits}{_SUFFIXES[suffix.replace(' ', '')] if suffix else ''}{'-laptop' if laptop else ''}"
        return tuple(chip for chip in chips if re.fullmatch(rf"{id_}(-\d+gb)?", chip))
    return ()


def _plain(name: str) -> str:
    return _SPACES.sub(" ", name.lower()).strip()


def _same(memory_bytes: int | None, gib: float) -> bool:
    """Whether a chip's memory and a list's are one size, as written by different people."""
    return memory_bytes is not None and abs(gib / (memory_bytes / 2**30) - 1) <= MEMORY_TOLERANCE


def _either(ids: Sequence[str]) -> str:
    return " or ".join(ids)
