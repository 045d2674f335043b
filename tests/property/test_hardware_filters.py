"""Filters, device texts and user files: either valid, or exactly the error that is promised."""

import tempfile
from contextlib import suppress
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.errors import FileFormatError, InputError, UnknownNameError
from gpuwise.hardware import Catalog, parse_device, parse_filter
from gpuwise.hardware.rows import CHIP, LINK, OFFER

CATALOG = Catalog()
CHIPS = list(CATALOG.chips.values())
FIELDS = ["memory", "bandwidth", "fp16", "year", "tdp", "vendor", "kind", "arch", "id", "price", "terms", "nonsense"]
WORD = st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=12)
TERM = st.builds(
    "{}{}{}".format,
    st.sampled_from(FIELDS),
    st.sampled_from(["=", "!=", ">=", "<=", ">", "<"]),
    WORD | st.sampled_from(["24GB", "80GiB", "100T", "2022", "300W", "nvidia", "$3"]),
)


@given(st.lists(TERM | WORD, max_size=4).map(" ".join), st.booleans())
def test_a_filter_is_valid_or_an_input_error(text, offers):
    try:
        wanted = parse_filter(text, offers=offers)
    except InputError:
        return
    for chip in CHIPS[::20]:
        assert wanted.matches(chip) in (True, False)


@given(st.integers(1, 600), st.integers(1, 600))
def test_more_memory_asked_never_finds_more_chips(a, b):
    low, high = sorted((a, b))
    wide, narrow = parse_filter(f"memory>={low}GB"), parse_filter(f"memory>={high}GB")
    assert {c.id for c in CHIPS if narrow.matches(c)} <= {c.id for c in CHIPS if wide.matches(c)}


@given(st.sampled_from(["<", ">", "="]), st.integers(1, 600))
def test_a_comparison_and_its_opposite_split_the_known(sign, size):
    opposite = {"<": ">=", ">": "<=", "=": "!="}[sign]
    one, other = parse_filter(f"memory{sign}{size}GiB"), parse_filter(f"memory{opposite}{size}GiB")
    for chip in CHIPS:
        assert one.matches(chip) + other.matches(chip) == (chip.memory_bytes is not None)


@given(st.sampled_from(sorted(CATALOG.chips)), st.integers(1, 8), st.integers(1, 99_999))
def test_device_texts_read_back(chip_id, count, machines):
    spec = parse_device(f"{chip_id}:{count}x{machines}", catalog=CATALOG)
    assert (spec.chip.id, spec.cluster.devices_per_machine, spec.cluster.machines) == (chip_id, count, machines)


@given(WORD)
def test_a_device_is_valid_or_one_of_two_errors(text):
    with suppress(InputError, UnknownNameError):
        assert parse_device("x" + text, catalog=CATALOG).cluster.devices >= 1


VALUE = st.one_of(
    st.integers(-10, 10**6).map(str),
    st.floats(allow_nan=True).map(str),
    st.sampled_from(["true", "[]", "{}", "2026-01-01"]),
    st.sampled_from(['"gpu-consumer"', '"2026-07"', '"9.0"', '"t4"', '"nvlink4"', '"a"', '""', '"scale-up"']),
)
KEY = st.sampled_from(sorted({*CHIP, *LINK, *OFFER, "sources", "caveats", "unverified", "odd"}))
TABLE = st.dictionaries(KEY, VALUE, max_size=5).map(lambda t: "\n".join(f"{k} = {v}" for k, v in t.items()))
HEADER = st.sampled_from(
    [
        "[chip.t4]",
        "[chip.new]",
        "[link.nvlink4]",
        "[link.new]",
        "[[offer]]",
        "[odd]",
        "[[chip]]",
        '[[offer]]\nprovider = "me"\ninstance = "a"',
    ]
)
SECTION = st.builds("{}\n{}\n".format, HEADER, TABLE)
TEXT = st.lists(SECTION, max_size=3).map("\n".join) | st.text(max_size=40)


@settings(max_examples=60, deadline=None)
@given(TEXT)
def test_a_user_file_is_valid_or_a_file_format_error(text):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mine.toml"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        catalog = Catalog(user_files=[path])
        answer = None
        try:
            chips, offers = catalog.chips, catalog.offers
        except FileFormatError as error:
            answer = error.what
        if answer is not None:
            assert "mine.toml" in answer
            return
        assert len(chips) >= len(CHIPS)
        assert all(offer.usd_per_hour >= 0 for offer in offers)
