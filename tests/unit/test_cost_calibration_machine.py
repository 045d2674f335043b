"""The calibration file of a machine: written, read back, preferred by forecasts, left out with a word where it is damaged."""

from __future__ import annotations

import os
import tempfile
import tomllib
import warnings
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trace_samples import small_trace

from gpuwise.cost.calibration import CalibrationEntry, EfficiencyCurve, StepSpread, Term, calibration, names_of, to_table
from gpuwise.cost.calibration import machine as module
from gpuwise.cost.calibration.machine import machine_file, parse_machine
from gpuwise.cost.forecast import Forecast
from gpuwise.cost.price import price
from gpuwise.errors import FileFormatError, InputError
from gpuwise.hardware import Catalog, Chip
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.detect import Cpu, local_cpu_chip
from gpuwise.hardware.measured_chip import _with
from gpuwise.measure.calibration_file import HEAD, check_writable, write
from gpuwise.trace.parallel.communication import Communication

CHIP = Catalog().chips["epyc-9654"]
GPU = Catalog().chips["rtx-4090"]
CURVE = EfficiencyCurve("k", (16.0, 64.0, 256.0), (1.5, 1.0, 0.9))
GEMM = CalibrationEntry(
    {"compute": Term(2.5, (CURVE,)), "memory": Term(1.5)}, 2.0, 3e-6, (0.9, 1.2), {"source": "3 operations"}
)
FITTED: dict[str, Any] = {
    "entries": {
        "gemm.fp32": to_table(GEMM),
        "optimizer": to_table(CalibrationEntry({"memory": Term(2.0)}, floor_s=1e-6)),
        "elementwise": to_table(CalibrationEntry({"memory": Term(2.0)}, floor_s=1e-6)),
    },
    "scale": {},
    "spreads": [asdict(StepSpread("cpu", "machine", mode, 0.9, 1.1, rows=8)) for mode in ("train", "infer")],
}
FIGURES = {"peak_flops_per_s": {"fp32": 2.5e11}, "memory_bandwidth_bytes_per_s": 31e9, "as_of": "2026-05-04"}
ABOUT = {"taken": "2026-05-04T12:30:00+00:00", "notes": ["other processes used 31 % of the processors"]}
numbers = count()


def written(folder: Path, text: bytes | str | None = None, chip: Chip = CHIP) -> Chip:
    """The chip with a file of its own in this folder: a good one, or this text."""
    path = folder / f"machine-{next(numbers)}.toml"
    if text is None:
        write(path, chip.id, FITTED, FIGURES, ABOUT)
    else:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return replace(chip, calibration=str(path))


def good(folder: Path) -> str:
    """The text of a good file without its digest, so that a test may change it."""
    lines = Path(written(folder).calibration).read_text().splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("seal = "))


def forecast(chip: Chip) -> Forecast:
    trace = small_trace()
    return price(trace, Communication(), Cluster(chip), strategy=trace.header.strategy)


def warned(act: Any, *arguments: Any) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return act(*arguments), [str(warning.message) for warning in caught]


def test_what_was_written_is_read(tmp_path: Path):
    chip = written(tmp_path)
    result = calibration(chip)
    assert result.files[1:] == calibration(CHIP).files
    assert (result.files[0].level, result.files[0].of) == ("machine", CHIP.id)
    got = result.find("gemm", "fp32")
    assert (got.entry, got.level, got.scale) == (GEMM, "machine", 1.0)
    assert [(s.level, s.mode, s.low, s.high, s.rows) for s in result.spreads] == [
        ("machine", "train", 0.9, 1.1, 8),
        ("machine", "infer", 0.9, 1.1, 8),
    ]
    assert Path(chip.calibration).read_text().startswith(HEAD)


def test_forecasts_say_that_it_was_measured_here_and_take_its_spread(tmp_path: Path):
    before, after = forecast(CHIP), forecast(written(tmp_path))
    assert after.provenance["step_time_s"] == "measured here"
    assert after.rests_on == {"measured here": pytest.approx(1.0)}
    step = after.step_time_s
    assert (step.low / step.value, step.high / step.value) == pytest.approx((0.9, 1.1))
    assert step.value != before.step_time_s.value
    assert before.provenance["step_time_s"] != "measured here"
    assert before.step_time_s.low / before.step_time_s.value != pytest.approx(0.9)


def test_measured_peaks_leave_a_chip_what_it_is_called():
    measured = replace(CHIP, peak_flops_per_s={"fp32": 2e11, "bf16": 4.4e11})
    assert names_of(measured) == names_of(CHIP)
    assert names_of(CHIP)["generation"] == "AMD AVX-512"
    unknown = local_cpu_chip(Cpu("AMD EPYC", "AMD", 2, 4, flags=("avx2", "avx512-halved", "avx512-bf16")), Catalog())
    assert names_of(unknown)["generation"] == "AMD AVX-512"
    assert names_of(replace(unknown, peak_flops_per_s=measured.peak_flops_per_s)) == names_of(unknown)
    older = local_cpu_chip(Cpu("AMD EPYC", "AMD", 2, 4, flags=("avx2",)), Catalog())
    assert names_of(older)["generation"] == ""


def test_a_class_without_an_entry_keeps_the_shipped_one_and_takes_its_share_of_the_interval(tmp_path: Path):
    only = {**FITTED, "entries": {"optimizer": FITTED["entries"]["optimizer"]}}
    write(tmp_path / "m.toml", CHIP.id, only, FIGURES, ABOUT)
    chip = replace(CHIP, calibration=str(tmp_path / "m.toml"))
    assert calibration(chip).find("gemm", "fp32") == calibration(CHIP).find("gemm", "fp32")
    result = forecast(chip)
    assert 0 < result.rests_on["measured here"] < 1
    assert result.step_time_s.high / result.step_time_s.value > 1.1


def test_factors_of_a_gpu_stand_on_what_is_shipped(tmp_path: Path):
    results = {"entries": {}, "scale": {"gemm.fp32": 1.25, "optimizer": 0.5}, "spreads": []}
    write(tmp_path / "m.toml", GPU.id, results, {}, ABOUT)
    chip, shipped = replace(GPU, calibration=str(tmp_path / "m.toml")), calibration(GPU)
    for kind, numerics, factor in (("gemm", "fp32", 1.25), ("optimizer", "", 0.5)):
        got, before = calibration(chip).find(kind, numerics), shipped.find(kind, numerics)
        assert (got.entry, got.level, got.scale) == (before.entry, "machine", pytest.approx(factor * before.scale))
    assert calibration(chip).find("norm_layer") == shipped.find("norm_layer")
    assert forecast(chip).provenance["step_time_s"] == "measured here"
    assert calibration(chip).spreads == ()


def test_the_file_of_another_chip_changes_nothing(tmp_path: Path):
    chip = replace(CHIP, calibration=written(tmp_path, chip=GPU).calibration)
    assert calibration(chip) == calibration(CHIP)


def test_a_second_measurement_is_seen_at_once_and_replaces_the_first_whole(tmp_path: Path):
    chip = written(tmp_path)
    assert calibration(chip).find("gemm", "fp32").level == "machine"
    stat = os.stat(chip.calibration)
    write(Path(chip.calibration), CHIP.id, {**FITTED, "entries": {}, "spreads": []}, {}, ABOUT)
    os.utime(chip.calibration, ns=(stat.st_atime_ns, stat.st_mtime_ns + 10**9))
    assert calibration(chip).find("gemm", "fp32") == calibration(CHIP).find("gemm", "fp32")
    assert calibration(chip).spreads == ()


def test_a_file_that_is_gone_is_said_once_a_forecast(tmp_path: Path):
    gone = replace(CHIP, calibration=str(tmp_path / "gone.toml"))
    result, text = warned(forecast, gone)
    assert result.to_dict() == forecast(CHIP).to_dict()
    assert len(text) == 1
    assert "what was measured on this machine is left out" in text[0]
    assert "`gpuwise measure` writes it anew" in text[0]


ENTRY = '[entry."gemm.fp32"]\n'
DAMAGED = {
    "not TOML": "schema = ",
    "empty": "",
    "not text": b"\xff\xfe\x00",
    "cut short": 'schema = 1\nlevel = "machine"\nof = "epyc-96',
    "of a later version": 'schema = 2\nlevel = "machine"\nof = "epyc-9654"\n',
    "of another level": 'schema = 1\nlevel = "chip"\nof = "epyc-9654"\n',
    "of no level": 'schema = 1\nof = "epyc-9654"\n',
    "of a list of levels": 'schema = 1\nlevel = ["machine"]\nof = "epyc-9654"\n',
    "of nothing": 'schema = 1\nlevel = "machine"\n',
    "spreads that are none": 'schema = 1\nlevel = "machine"\nof = "epyc-9654"\nspread = 3\n',
    "a spread of another level": 'schema = 1\nlevel = "machine"\nof = "epyc-9654"\n'
    '[[spread]]\nfamily = "cpu"\nlevel = "chip"\nmode = "train"\nlow = 0.9\nhigh = 1.1\n',
    "nested without end": "a = " + "[" * 100_000,
    "a number without end": "schema = " + "9" * 5000,
    "a number beyond all machines": f'schema = 1\nlevel = "machine"\nof = "epyc-9654"\n{ENTRY}floor_s = {"9" * 400}\n'
    '[entry."gemm.fp32".terms.compute]\nscale = 1.0\n',
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_left_out_with_one_warning(text: bytes | str, tmp_path: Path):
    chip = written(tmp_path, text)
    result, message = warned(forecast, chip)
    assert result.to_dict() == forecast(CHIP).to_dict()
    assert len(message) == 1
    assert chip.calibration in message[0]


def test_a_curve_over_what_is_not_known_stops_no_forecast(tmp_path: Path):
    text = good(tmp_path).replace('over = "k"', 'over = "moonlight"')
    assert "moonlight" in text
    assert forecast(written(tmp_path, text)).step_time_s.value > 0


def test_a_folder_in_its_place_is_left_out(tmp_path: Path):
    _, text = warned(forecast, replace(CHIP, calibration=str(tmp_path)))
    assert len(text) == 1


VALUES = [
    "nan",
    "inf",
    "-1",
    "0",
    "1e30",
    "1e-300",
    "true",
    '""',
    '"x"',
    "[]",
    "{}",
    "[[[]]]",
    "1979-05-27",
    "9" * 30,
    "9" * 5000,
    "[" * 3000,
    "1e999",
]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A good file of which a value is another, a line is gone or twice, or some bytes are others."""
    with tempfile.TemporaryDirectory() as folder:
        lines = good(Path(folder)).splitlines()
    at, how = draw(st.integers(0, len(lines) - 1)), draw(st.sampled_from(["value", "value", "name", "gone", "twice", "bytes"]))
    name, equals, _ = lines[at].partition("=")
    if how == "value" and equals:
        lines[at] = f"{name}= {draw(st.sampled_from(VALUES))}"
    elif how == "name":
        lines[at] = lines[at].replace(draw(st.sampled_from("aeikost")), draw(st.sampled_from(["", "x", "."])), 1)
    elif how == "gone":
        del lines[at]
    elif how == "twice":
        lines.insert(at, lines[at])
    text = "\n".join(lines).encode()
    if how == "bytes":
        start = draw(st.integers(0, len(text)))
        text = text[:start] + draw(st.binary(max_size=9)) + text[start + draw(st.integers(0, 40)) :]
    return text


@given(mutated())
@settings(max_examples=150, deadline=None)
def test_whatever_is_in_the_file_it_is_used_or_left_out_with_one_warning(text: bytes):
    with tempfile.TemporaryDirectory() as folder:
        chip = written(Path(folder), text)
        result, message = warned(machine_file, chip.calibration)
        assert len(message) == (result is None)
        if result is not None and result.file.of == CHIP.id:
            step = warned(forecast, chip)[0].step_time_s  # may warn of figures that overflow
            assert step.low <= step.value <= step.high


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
        max_leaves=6,
    ),
    st.sampled_from(["schema", "level", "of", "scale", "entry", "spread", "chip", "measured", "more"]),
)
@example({"fp32": 10**400}, "scale")
@settings(max_examples=150, deadline=None)
def test_whatever_stands_at_a_key_it_is_a_file_or_a_format_error(value: Any, key: str):
    data = {
        "schema": 1,
        "level": "machine",
        "of": CHIP.id,
        "scale": {},
        "entry": FITTED["entries"],
        "spread": FITTED["spreads"],
    }
    result, error = None, None
    try:
        result = parse_machine(data | {key: value}, "here.toml")
    except FileFormatError as caught:
        error = caught
    assert (result is None) != (error is None)
    assert error is None or ("here.toml" in error.what and error.ways_out)


class TestWriting:
    def test_what_forecasts_could_not_read_is_not_written(self, tmp_path: Path):
        wrong = {**FITTED, "spreads": [{"family": "cpu", "level": "machine", "mode": "train", "low": 2.0, "high": 3.0}]}
        with pytest.raises(FileFormatError, match=r"m\.toml: row 1"):
            write(tmp_path / "m.toml", CHIP.id, wrong, FIGURES, ABOUT)
        assert os.listdir(tmp_path) == []

    @pytest.mark.parametrize(
        ("was", "becomes"), [("floor_s = ", "floor_s = 1"), ("fp32 = ", "fp32 = 9"), ("high = ", "high = 9")]
    )
    def test_a_file_that_was_changed_is_left_out_as_a_whole(self, was: str, becomes: str, tmp_path: Path):
        """Entries are fitted to the chip's measured peaks: one without the other is no measurement."""
        path = tmp_path / "machines" / "m.toml"
        path.parent.mkdir()
        write(path, CHIP.id, FITTED, FIGURES, ABOUT)
        text = path.read_text()
        assert parse_machine(tomllib.loads(text), path.name).spreads
        assert was in text
        path.write_text(text.replace(was, becomes, 1))
        with pytest.raises(FileFormatError, match=r"m\.toml: was changed after"):
            parse_machine(tomllib.loads(path.read_text()), path.name)

    def test_failing_in_the_middle_leaves_what_was_there(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        path = Path(written(tmp_path).calibration)
        before = path.read_bytes()
        monkeypatch.setattr(os, "replace", full)
        with pytest.raises(InputError, match=r"cannot be written to .*: No space left on device") as caught:
            write(path, CHIP.id, {**FITTED, "entries": {}}, {}, ABOUT)
        assert caught.value.ways_out
        assert path.read_bytes() == before
        assert os.listdir(tmp_path) == [path.name]

    def test_checking_makes_the_folder_and_nothing_in_it(self, tmp_path: Path):
        check_writable(tmp_path / "new" / "machines" / "m.toml")
        assert os.listdir(tmp_path / "new" / "machines") == []
        assert (tmp_path / "new" / "machines").stat().st_mode & 0o077 == 0

    def test_checking_a_folder_that_cannot_be_made(self, tmp_path: Path):
        (tmp_path / "file").write_text("kept")
        with pytest.raises(InputError, match="cannot be written to"):
            check_writable(tmp_path / "file" / "machines" / "m.toml")
        assert (tmp_path / "file").read_text() == "kept"


def test_absurd_figures_of_the_chip_are_ignored():
    for absurd in (float("nan"), float("inf"), -1e9, 0, True, "3e11", [3e11], {"a": 1}, 1e30, 10**400, None):
        result = _with(CHIP, {"peak_flops_per_s": {"fp32": absurd}, "memory_bandwidth_bytes_per_s": absurd})
        assert result.peak_flops_per_s == CHIP.peak_flops_per_s
        assert result.memory_bandwidth_bytes_per_s == CHIP.memory_bandwidth_bytes_per_s
        assert _with(CHIP, {"peak_flops_per_s": absurd}).peak_flops_per_s == CHIP.peak_flops_per_s


def test_tables_for_people_may_hold_anything(tmp_path: Path):
    data = {"schema": 1, "level": "machine", "of": CHIP.id, "measured": {"anything": [1, {"at": "all"}]}, "chip": {"x": []}}
    assert parse_machine(data, "here.toml").spreads == ()
    assert warned(calibration, written(tmp_path, tomli_w.dumps(data)))[1] == []
    assert module.LEVEL == "machine"
