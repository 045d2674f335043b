"""docs/claims.md is generated: what it computes is what is computed today, and its words fit the figures.

Rows that have to trace a job first take minutes together: `python -m benchmarks.claims --write` makes them anew.
"""

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks.claims import measured, page
from benchmarks.claims.claim import Call, Claim, Row, digits, seconds

from gpuwise.errors import InputError

DOCS = Path(__file__).parents[2] / "docs"
PAGE = page.PATH.read_text(encoding="utf-8")
RESULTS = measured.load()
CLAIMS = pytest.mark.parametrize("claim", page.CLAIMS, ids=lambda claim: claim.name)
# What the page must hold, by words of what people say.
ASKED = (
    "ResNet-50 10 to 100",
    "BERT 10 to 100",
    "10,000 rows of 20 features",
    "1000 × 1000",
    "1024 × 1024",
    "256 × 1024",
    "matrix and a vector",
    "Tensor cores",
    "Larger batches",
    "Flash attention",
    "O(√n)",
    "Mixed precision halves",
    "Adam keeps",
    "7B model in fp16",
    "13B model on a 24 GB",
    "ZeRO",
    "batch of 32 in 4 GB",
    "29 hours",
    "30 minutes on a V100",
    "34 days",
    "654 hours",
    "60 to 90 %",
    "5 to 50 times",
)


def section_of(claim: Claim) -> str:
    return PAGE.split(f'<a id="{claim.name}"></a>')[1].split("\n<a id=")[0]


def line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def test_header_says_that_the_page_is_generated_and_by_what():
    first, title, *rest = PAGE.splitlines()
    assert first.startswith("<!-- Generated.")
    assert page.COMMAND in first
    assert title.startswith("# ")
    assert any("generated" in text and page.COMMAND in text for text in rest[:3])


@pytest.mark.parametrize("words", ASKED)
def test_every_claim_that_was_asked_for_is_there(words):
    assert sum(words in claim.said for claim in page.CLAIMS) == 1


SLOW = ("13b-on-24-gb",)


@pytest.mark.parametrize(
    "claim",
    [pytest.param(claim, marks=pytest.mark.slow) if claim.name in SLOW else claim for claim in page.CLAIMS],
    ids=lambda claim: claim.name,
)
def test_computed_figures_are_those_of_today(claim):
    values, part = claim.values(slow=False), section_of(claim)
    assert not claim.outside(values)
    for row in claim.rows:
        if row.key in values:
            assert line(*page.computed(claim, row, values)) in part
    if len(values) == len(claim.rows):
        made = page.section(claim, values, RESULTS.rows).split("</a>", 1)[1]
        assert part.split("\n## ")[0].rstrip() == made.rstrip()
        assert line(*page.overview(claim, values)) in PAGE


@CLAIMS
def test_what_is_said_has_a_verdict_rows_that_exist_and_measurements_that_are_known(claim):
    from benchmarks.claims.benches import benches

    assert claim.verdict in ("right", "wrong", "right under conditions")
    keys = [row.key for row in claim.rows]
    assert len(set(keys)) == len(keys)
    for row in claim.rows:
        if isinstance(row.source, tuple):
            assert set(row.source) <= set(keys[: keys.index(row.key)])
    used = set(re.findall(r"\{(\w+)\}", claim.numbers + claim.conditions + claim.note))
    assert used <= set(keys)
    assert set(claim.measured) <= set(benches())
    assert all(item.checked is False or item.source for item in claim.published)


def test_figures_exist_and_are_drawings():
    named = set(re.findall(r"!\[[^\]]+\]\(figures/(claims/[^)]+)\)", PAGE))
    assert named == {claim.figure[0] for claim in page.CLAIMS if claim.figure}
    assert {f"claims/{path.name}" for path in (DOCS / "figures" / "claims").iterdir()} == named
    for name in named:
        text = (DOCS / "figures" / name).read_text(encoding="utf-8")
        assert text.lstrip().startswith("<?xml")
        assert "</svg>" in text


def test_links_of_the_first_table_lead_to_sections():
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) == {claim.name for claim in page.CLAIMS}


def test_tables_are_whole():
    for block in re.findall(r"(?:^\|.*\|\n)+", PAGE, flags=re.MULTILINE):
        head, ruler, *lines = block.splitlines()
        assert re.fullmatch(r"[|: -]+", ruler)
        assert lines, head
        assert {text.count("|") for text in lines} == {head.count("|")}


def test_no_path_of_the_machine_that_made_it_and_no_missing_number():
    assert not re.search(r"(?:^|[\s`(\"])/(?:work|tmp|home|root)/|\bnan\b|\binf\b|\{[a-z_]+\}", PAGE)


def test_a_call_is_shown_as_it_is_run():
    call = Call("kernel", "gemm", (("on", "t4"), ("dtype", "fp16"), ("m", 64), ("n", 64), ("k", 64)))
    assert call.text == 'gpuwise.kernel("gemm", on="t4", dtype="fp16", m=64, n=64, k=64)'
    import gpuwise

    assert eval(call.text, {"gpuwise": gpuwise}) == call.run()


def test_words_that_no_longer_fit_are_told():
    row = Row("x", "a figure", "1 + 1", lambda: 2.0, lambda x: f"{x:.0f}", holds=(3, 4))
    claim = Claim("name", "said", "right", "{x}", "{x} of them", (row,))
    assert claim.outside(claim.values()) == ["name: x is 2"]
    assert claim.filled(claim.conditions, claim.values()) == "2 of them"


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (1234567.0, "1,230,000"), (12.345, "12.3"), (0.99999, "1.00"), (0.0001234, "0.000123")]
)
def test_figures_have_three_digits(value, text):
    assert digits(value) == text


@pytest.mark.parametrize(("value", "text"), [(2.5, "2.50 s"), (0.0205, "20.5 ms"), (6.1e-6, "6.10 µs"), (5e-7, "0.500 µs")])
def test_times_have_a_unit_that_suits(value, text):
    assert seconds(value) == text


def test_measurements_are_kept_beside_those_of_the_same_machine_only(tmp_path):
    path, here = tmp_path / "measured.json", measured.Machine("a CPU", 2, 2, "2.13.0")
    row = measured.Measured("a product", "s", 1.0, 0.9, 1.1, 0.9, 5, "2026-01-01", flops=2e9)
    measured.save(here, {"first": row}, whole=True, path=path)
    measured.save(here, {"second": row}, whole=False, path=path)
    assert measured.load(path) == measured.Results(here, {"first": row, "second": row})
    with pytest.raises(InputError, match="another machine"):
        measured.save(measured.Machine("another", 2, 2, "2.13.0"), {"third": row}, whole=False, path=path)
    assert set(json.loads(path.read_text())["rows"]) == {"first", "second"}
    assert page.measured(row) == ("a product", "1.00 s", "900 ms to 1.10 s", "5", "2.00 GFLOP/s", "")
