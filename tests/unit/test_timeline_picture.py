"""A step over time: its lanes, the picture, the trace, the text, and the flag."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from test_trace_sharded import gpt_job

import gpuwise
from gpuwise.cli.main import main
from gpuwise.cost.timeline.step import KINDS, StepTimeline, TimelineLane, TimelineSpan, step_timeline
from gpuwise.errors import InputError
from gpuwise.hardware import load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.types import Link
from gpuwise.report.timeline_picture import LOOK, chrome_trace, joined, save_timeline, svg, text_timeline
from gpuwise.strategy import Mesh, Strategy
from gpuwise.trace.parallel.ranks import RankStep
from gpuwise.trace.parallel.recorded import split_communication
from gpuwise.tracing import record
from gpuwise.units import format_duration

PIPELINE = ("llama3-8b", "--on", "h100-sxm:4", "--mesh", "pp=4", "--accumulate", "6", "--recompute", "full")


@pytest.fixture(scope="module")
def pipeline() -> StepTimeline:
    return gpuwise.step_timeline("llama3-8b", on="h100-sxm:4", mesh="pp=4", accumulate=6, recompute="full")


@pytest.fixture(scope="module")
def composed() -> StepTimeline:
    return gpuwise.step_timeline("llama3-8b", on="h100-sxm:8", mesh="dp_shard=2,tp=4", accumulate=3)


@pytest.fixture(scope="module")
def recorded() -> StepTimeline:
    trace = record(gpt_job(), Strategy(mesh=Mesh(dp_shard=8)))
    inside = Link("inside", "a switch", "scale-up", allreduce_busbw_bytes_per_s=400e9)
    cluster = Cluster(load_catalog().chip("h100-80gb-sxm"), 8, inside=inside)
    forecast = gpuwise.forecast("gpt2", on="h100-sxm:8", mesh="dp_shard=8")
    return step_timeline((RankStep("", *split_communication(trace), recorded=trace),), cluster, forecast)


def of_kind(lane: TimelineLane, *kinds: str) -> list[TimelineSpan]:
    return [span for span in lane.spans if span.kind in kinds]


def test_every_kind_has_a_look_of_its_own() -> None:
    assert set(LOOK) == set(KINDS)
    assert len({letter for _, letter in LOOK.values()}) == len({colour for colour, _ in LOOK.values()}) == len(LOOK)


def test_a_pipeline_has_a_lane_for_each_rank(pipeline: StepTimeline) -> None:
    assert [lane.name for lane in pipeline.lanes] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    for lane in pipeline.lanes:
        assert len(of_kind(lane, "forward")) == len(of_kind(lane, "backward")) == 6
        assert all(later.start_s >= span.end_s - 1e-9 for span, later in zip(lane.spans, lane.spans[1:], strict=False))
    assert pipeline.whole_s == pytest.approx(pipeline.forecast.step_time_s.value)
    assert pipeline.lanes[3].spans[0].start_s > 0


def test_a_composed_rank_is_its_breakdown(composed: StepTimeline) -> None:
    (lane,) = composed.lanes
    for name, seconds in composed.forecast.breakdown.items():
        kind = "communication" if name.startswith("communication") else name
        spans = [span for span in of_kind(lane, kind) if span.name.startswith(name.replace("_", " "))]
        assert sum(span.end_s - span.start_s for span in spans) == pytest.approx(seconds)
    assert composed.whole_s == pytest.approx(composed.forecast.step_time_s.value)


def test_a_recorded_rank_has_its_streams(recorded: StepTimeline) -> None:
    first, *others = recorded.lanes
    assert first.name == "computation"
    assert any(span.kind == "communication" and span.name.endswith("dp_shard") for lane in others for span in lane.spans)
    assert not of_kind(first, "communication")


def test_the_trace_is_one_that_perfetto_reads(pipeline: StepTimeline, tmp_path: Path) -> None:
    saved = json.loads(save_timeline(pipeline, tmp_path / "step.json").read_text())
    assert saved == json.loads(json.dumps(chrome_trace(pipeline)))
    spans = [event for event in saved["traceEvents"] if event["ph"] == "X"]
    assert len(spans) == sum(len(lane.spans) for lane in pipeline.lanes)
    assert all({"name", "ph", "ts", "dur", "pid", "tid"} <= set(event) for event in spans)
    assert max(event["ts"] + event["dur"] for event in spans) == pytest.approx(1e6 * pipeline.whole_s)
    names = {event["args"]["name"] for event in saved["traceEvents"] if event["name"] == "thread_name"}
    assert names == {lane.name for lane in pipeline.lanes}
    assert {event["pid"] for event in saved["traceEvents"]} == {1}  # 0 is Linux's idle task to Perfetto
    order = {
        event["tid"]: event["args"]["sort_index"] for event in saved["traceEvents"] if event["name"] == "thread_sort_index"
    }
    assert order == {number: number for number in range(1, 5)}
    assert {event["tid"] for event in spans} == set(order)


@pytest.mark.parametrize("name", ["pipeline", "composed", "recorded"])
def test_the_picture_is_xml_that_names_its_lanes(name: str, request: pytest.FixtureRequest) -> None:
    timeline: StepTimeline = request.getfixturevalue(name)
    root = ElementTree.fromstring(svg(timeline))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {lane.name for lane in timeline.lanes} <= set(texts)
    assert any(timeline.remark in (text or "") for text in texts)


def test_the_text_has_a_line_for_each_rank(pipeline: StepTimeline) -> None:
    lines = text_timeline(pipeline).splitlines()
    assert lines[0].startswith("llama3-8b on h100-80gb-sxm x 4: ")
    first, last = (next(line for line in lines if line.startswith(f"rank {rank} |")) for rank in (0, 3))
    assert len(first) == len(last)
    assert first.split("|")[1].startswith("F")
    assert last.split("|")[1].startswith(" ")


def test_narrow_spans_of_a_kind_are_drawn_as_one() -> None:
    spans = [
        TimelineSpan("a", "forward", 0.0, 0.1),
        TimelineSpan("b", "forward", 0.1, 0.2),
        TimelineSpan("c", "backward", 0.2, 9.0),
    ]
    assert [(span.kind, span.end_s) for span in joined(spans, 1.0)] == [("forward", 0.2), ("backward", 9.0)]
    assert joined(spans, 0.0) == spans


def test_the_flag_prints_and_writes(tmp_path: Path) -> None:
    printed = CliRunner().invoke(main, ["forecast", *PIPELINE, "--timeline", "-"])
    assert printed.exit_code == 0, printed.output
    assert "rank 3 |" in printed.stdout
    written = CliRunner().invoke(main, ["forecast", *PIPELINE, "--json", "--timeline", str(tmp_path / "step.svg")])
    assert written.exit_code == 0, written.output
    assert json.loads(written.stdout)["breakdown"]["bubble"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["step.svg"]
    assert "timeline written to" in written.stderr


@pytest.mark.parametrize(
    ("path", "words"), [("step.png", ".svg or .json"), ("none/step.svg", "no such file"), ("-", "nothing but JSON")]
)
def test_other_files_are_refused(path: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(main, ["forecast", "gpt2", "--on", "t4", "--json", "--timeline", path])
    assert refused.exit_code == 2
    assert words in refused.output.lower() or words in refused.output
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there(pipeline: StepTimeline, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write"):
        save_timeline(pipeline, tmp_path / "none" / "step.svg")


def test_short_rows_with_waits_between_them_are_seen(pipeline: StepTimeline) -> None:
    """As where the host is the limit: the device works a tenth of the time."""
    rows = tuple(TimelineSpan("kernel", "forward", 1e-3 * n, 1e-3 * n + 1e-4) for n in range(960))
    lines = text_timeline(replace(pipeline, lanes=(TimelineLane("computation", rows),))).splitlines()
    letters = next(line for line in lines if line.startswith("computation |")).split("|")[1]
    assert set(letters) == {"F"}
    step = format_duration(pipeline.forecast.step_time_s.value)
    assert f"a step of {step}, {format_duration(rows[-1].end_s)} of it drawn" in lines[0]
