"""The page of a run: what stands in it, for every way a run can end, from its log alone."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from gpuwise.report.run_page import run_page
from gpuwise.report.run_records import lasting
from gpuwise.report.svg_chart import decades, envelope, smooth, ticks
from gpuwise.strategy import Strategy

HEADER = {
    "record": "header",
    "time": "2026-03-01T12:00:00.000+00:00",
    "job": "gpt2",
    "parameters": 124_439_808,
    "strategy": Strategy("amp-bf16", micro_batch=8, accumulation=4).to_dict(),
    "device": "cuda",
    "threads": 8,
    "seed": 3,
    "steps": 100,
    "versions": {"gpuwise": "0.1.0", "torch": "2.13.0"},
    "forecast": {
        "step_time_s": {"value": 0.3, "low": 0.2, "high": 0.4},
        "usd_per_hour": 3.6,
        "memory": {"peak_allocated_bytes": 13 * 2**30},
    },
}
SUMMARY = {
    "record": "summary",
    "stopped": "finished",
    "stop_reason": None,
    "step_time": {"median_s": 0.25},
    "data_share": 0.02,
    "samples_per_s": 100.0,
    "mfu": 0.41,
    "metrics": {"accuracy": 0.5},
    "notes": ["2 samples are left over."],
    "memory_check": {"forecast_bytes": 13 * 2**30, "measured_bytes": 10 * 2**30},
    "usd": None,
}


def step(number, **more):
    return {
        "record": "step",
        "time": "2026-03-01T12:00:01.000+00:00",
        "step": number,
        "samples": 32 * number,
        "loss": 5 / number,
        "learning_rate": 1e-3,
        "step_time_s": 0.25,
        "data_s": 0.05,
        "samples_per_s": 106.7,
        "memory_bytes": 10 * 2**30,
        "steps": 1,
        **more,
    }


STEPS = [step(number) for number in range(1, 101)]


class Balanced(HTMLParser):
    """Checks that every element that opens closes, and keeps the text."""

    EMPTY = frozenset({"meta", "line", "rect", "path", "circle"})

    def __init__(self, page):
        super().__init__()
        self.open, self.words = [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "link", "img", "iframe")
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag in self.EMPTY

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data.strip())


def words(records):
    return " ".join(word for word in Balanced(run_page(records)).words if word)


def pictures(records):
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", run_page(records), re.DOTALL)]


def test_a_finished_run():
    text = words([HEADER, *STEPS, SUMMARY])
    for expected in (
        "gpt2",
        "124M parameters · cuda · 8 threads · amp-bf16, micro-batch 8 x 4 · seed 3",
        "torch 2.13.0",
        "Finished at step 100 of 100.",
        "MFU 41 %",
        "waiting for data 2 %",
        "accuracy 0.5",
        "step time 300 ms (200 ms to 400 ms) 250 ms +20.0 %",
        "peak memory 13 GiB 10 GiB +30.0 %",
        "training time 30 s 30 s +0.0 %",
        "cost $0.03 $0.03",
        "2 samples are left over.",
    ):
        assert expected in text, expected


def test_nothing_comes_from_elsewhere():
    page = run_page([HEADER, *STEPS, SUMMARY])
    assert not re.search(r"https?://|src=|href=|url\(|@import", page)
    assert "prefers-color-scheme: dark" in page


@pytest.mark.parametrize(
    ("ends", "stand"),
    [
        ([], "At step 100 of 100; the log has no end: the run is still going, or was killed."),
        ([{"record": "interrupted", "step": 100, "why": "SIGTERM"}], "Interrupted (SIGTERM) after step 100 of 100."),
        ([{"record": "interrupted", "at_once": True}], "Interrupted at once after step 100 of 100."),
        (
            [{"record": "error", "code": "bad-job", "message": "The loss is nan."}],
            "Failed after step 100 of 100: The loss is nan.",
        ),
        ([SUMMARY | {"stopped": "interrupted", "stop_reason": "SIGTERM"}], "Interrupted at step 100 of 100: SIGTERM."),
        ([SUMMARY | {"stopped": "early stop"}], "Early stop at step 100 of 100."),
    ],
)
def test_where_it_stands(ends, stand):
    assert stand in words([HEADER, *STEPS, *ends])


def test_one_picture_a_quantity_and_only_of_what_is_known():
    titles = re.findall(r"<figcaption>([^<]*)", run_page([HEADER, *STEPS, SUMMARY]))
    assert [title.strip() for title in titles] == ["loss", "step time", "samples/s", "memory", "learning rate"]
    evaluations = [{"record": "evaluation", "step": at, "metrics": {"accuracy": at / 100}} for at in (50, 100)]
    assert ">accuracy <" in run_page([HEADER, *STEPS, *evaluations])
    assert pictures([HEADER]) == []


def test_marks_say_what_happened():
    records = [
        HEADER,
        *STEPS[:60],
        {"record": "interrupted", "step": 60, "why": "SIGTERM"},
        HEADER,
        {"record": "resumed", "step": 50},
        *STEPS[50:],
        {"record": "checkpoint", "step": 90},
        {"record": "checkpoint", "step": 95, "failed": "No space left on device"},
        {"record": "event", "step": 70, "kind": "spike", "text": "the loss rose <far>"},
    ]
    titles = [title.text for title in pictures(records)[0].iter("title")]
    assert sorted(titles) == [
        "step 50: resumed",
        "step 60: interrupted (SIGTERM)",
        "step 70: the loss rose <far>",
        "step 90: checkpoint saved",
        "step 95: checkpoint not saved: No space left on device",
    ]
    message = words(records)
    assert "60 interrupted (SIGTERM)" in message
    assert "checkpoints 1" in message


def test_nothing_is_said_twice():
    failed = "No space left on device"
    records = [
        HEADER,
        {"record": "event", "kind": "note", "text": SUMMARY["notes"][0]},
        *STEPS,
        {"record": "checkpoint", "step": 90, "failed": failed},
        {"record": "event", "step": 90, "kind": "checkpoint", "text": failed},
        {"record": "event", "step": 95, "kind": "spike", "text": "the loss rose"},
        SUMMARY,
    ]
    message = re.sub(r"<svg.*?</svg>", "", run_page(records), flags=re.DOTALL)
    assert [message.count(text) for text in (SUMMARY["notes"][0], failed, "the loss rose")] == [1, 1, 1]
    assert SUMMARY["notes"][0] in words(records[:2])  # of a run that has no summary, it stands among the events


def test_points_lie_within_the_picture():
    wild = [step(1, loss=1e30), step(2, loss=1e-30, step_time_s=1e5), step(3, loss=-1.0, samples_per_s=0), step(4, loss=None)]
    for records in ([HEADER, *STEPS], [HEADER, *wild], [HEADER, step(1)], [HEADER, step(1, loss=0), step(2, loss=0)]):
        for picture in pictures(records):
            width, height = map(float, picture.get("viewBox").split()[2:])
            for path in picture.iter("path"):
                if path.get("class") != "trouble":
                    places = [pair.split() for pair in path.get("d")[1:].split("L")]
                    assert all(0 <= float(x) <= width and 0 <= float(y) <= height for x, y in places)


def test_a_page_of_a_long_run_stays_small():
    records = [HEADER]
    for number in range(1, 50_001):
        records.append(step(number, grad_norm=1.0))
        if number % 50 == 0:
            records.append({"record": "checkpoint", "step": number})
    assert len(run_page(records)) < 600_000


@pytest.mark.parametrize("job", ["<script>alert(1)</script>", "a & b", '"><img src=x>'])
def test_names_are_escaped(job):
    hostile = {"record": "event", "step": 2, "text": job, "time": job}
    text = words(
        [
            HEADER | {"job": job, "device": job, "versions": {job: job}},
            *STEPS,
            hostile,
            {"record": "evaluation", "step": 3, "metrics": {job: 1.0}},
            SUMMARY | {"notes": [job], "stop_reason": job},
        ]
    )
    assert text.count(job) >= 6


def test_records_of_other_forms_are_left_out():
    odd = [
        {},
        {"record": 3},
        {"record": "step"},
        {"record": "step", "step": "x"},
        {"record": "step", "step": True, "loss": []},
        {"record": "evaluation", "step": 1, "metrics": [1]},
        {"record": "summary", "metrics": 3, "notes": "no"},
        {"record": "header", "strategy": {"mesh": 3}, "forecast": 7, "versions": [], "steps": {}, "job": None},
        {"record": "resumed"},
        {"record": "checkpoint", "step": 1, "failed": 3},
        {"record": "event", "step": 1},
    ]
    words(odd)
    words([HEADER, *odd[:-4], *STEPS, *odd])
    words([])


def test_what_lasts_of_runs_that_were_interrupted():
    evaluations = [{"record": "evaluation", "step": at, "of": run} for run, at in ((1, 10), (1, 20))]
    resumed = [HEADER, *evaluations, HEADER, {"record": "resumed", "step": 15}, {"record": "evaluation", "step": 20, "of": 2}]
    assert [(r["step"], r["of"]) for r in lasting(resumed, "evaluation")] == [(10, 1), (20, 2)]
    assert lasting([HEADER, *evaluations, HEADER], "evaluation") == []


def test_ticks_are_round_and_inside():
    assert ticks(0, 10, 5) == [0, 2, 4, 6, 8, 10]
    assert ticks(0.26, 0.41, 5) == pytest.approx([0.3, 0.35, 0.4])
    assert ticks(-1.2, 1.2, 5) == pytest.approx([-1, -0.5, 0, 0.5, 1])
    assert decades(0.5, 60) == [0.5, 1, 2, 5, 10, 20, 50]
    assert decades(1e-9, 1) == pytest.approx([1e-8, 1e-6, 1e-4, 1e-2, 1])


def test_long_curves_keep_their_extremes_and_their_ends():
    points = [(float(at), 1.0) for at in range(10_000)]
    points[5_000] = (5_000.0, 99.0)
    assert (5_000.0, 99.0) in envelope(points)
    assert len(envelope(points)) <= 800
    smoothed = smooth(points)
    assert len(smoothed) <= 400
    assert (smoothed[0][0], smoothed[-1][0]) == (0.0, 9_999.0)
    assert max(value for _, value in smoothed) < 1.2
