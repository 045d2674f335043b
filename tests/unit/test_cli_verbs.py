"""Each verb through the command line, on recorded traces made by hand: no PyTorch, the real catalog."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_plan_synthetic import synthetic_family

import gpuwise
from gpuwise import hardware
from gpuwise.cli.main import main
from gpuwise.errors import InputError
from gpuwise.plan import load_plan
from gpuwise.strategy import Strategy
from gpuwise.trace import presets, save

JOB = "tabular-mlp"
PLAN = ("plan", JOB, "--samples", "1M", "--budget", "100", "--deadline", "2d")


def record(folder: Path, **shape: int) -> None:
    for precision in ("fp32", "amp-bf16", "amp-fp16", "bf16"):
        for recompute in ("none", "full"):
            for mode in ("train", "infer"):
                family = synthetic_family(Strategy(precision, recompute=recompute, mode=mode), **shape)
                header = replace(family.header, job=JOB, torch_version="2.13.0")
                path = presets.preset_path(JOB, precision=precision, recompute=recompute, mode=mode, folder=folder)
                path.parent.mkdir(parents=True, exist_ok=True)
                save(replace(family, header=header), path)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recordings")
    record(folder, width=512, layers=3)
    return folder


@pytest.fixture(autouse=True)
def preset(recordings: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The preset is the recorded one; no user's files are read; the working folder is empty."""
    presets.load_preset.cache_clear()
    monkeypatch.setattr(presets, "DATA", recordings)
    monkeypatch.setenv("GPUWISE_CONFIG_DIR", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    yield
    presets.load_preset.cache_clear()


def run(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


def answer(*arguments: str):
    """What a verb prints under --json: nothing else may be on stdout."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_forecast_json_holds_the_contract():
    result = answer("forecast", JOB, "--on", "h100-sxm", "--micro-batch", "256", "--precision", "amp-bf16")
    assert (result["device"], result["count"], result["strategy"]["micro_batch"]) == ("h100-80gb-sxm", 1, 256)
    assert set(result["step_time_s"]) == {"value", "low", "high"}
    assert set(result["throughput"]) == {"value", "unit"}
    memory = result["memory"]
    assert {"peak_allocated_bytes", "peak_reserved_bytes", "device_bytes", "capacity_bytes", "fits"} <= set(memory)
    assert sum(memory["by_category"].values()) == memory["peak_allocated_bytes"]
    assert {"flops_per_step", "mfu", "energy_j", "usd_per_hour", "assumptions"} <= set(result)
    assert set(result["bound"]) == {"compute", "memory", "launch", "communication", "input"}
    assert {"forward", "backward", "recompute", "optimizer", "bubble", "input"} == set(result["breakdown"])
    assert sum(result["breakdown"].values()) == pytest.approx(result["step_time_s"]["value"])
    assert result["provenance"]["step_time_s"] in result["rests_on"]
    assert sum(result["rests_on"].values()) == pytest.approx(1)
    assert "bounds" in result["why"]


def test_a_guess_is_named_and_an_answered_one_is_not():
    guessed = " ".join(answer("forecast", JOB, "--on", "rtx-4090")["assumptions"])
    assert "assumed precision amp-bf16; --precision changes it" in guessed
    assert "assumed micro-batch 32; --micro-batch changes it" in guessed
    assert "price of" in guessed
    requested = ("--micro-batch", "8", "--precision", "fp32", "--optimizer", "adamw")
    named = " ".join(answer("forecast", JOB, "--on", "rtx-4090", *requested)["assumptions"])
    for flag in ("--precision", "--micro-batch", "--optimizer"):
        assert flag in guessed
        assert flag not in named


def test_several_devices_replicate_unless_told_otherwise():
    result = answer("forecast", JOB, "--on", "h100-sxm:8")
    assert result["strategy"]["mesh"]["dp_replicate"] == 8
    assert any("dp_replicate" in line and "--mesh" in line for line in result["assumptions"])
    sharded = answer("forecast", JOB, "--on", "h100-sxm:8", "--mesh", "dp_shard=8")
    assert sharded["strategy"]["mesh"]["dp_shard"] == 8
    assert sharded["memory"]["by_category"]["optimizer_state"] < result["memory"]["by_category"]["optimizer_state"]
    assert answer("forecast", JOB, "--on", "h100-sxm", "--mesh", "dp=4")["count"] == 4


def test_a_model_too_large_for_one_device_is_sharded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    record(tmp_path / "big", width=16384, layers=12)
    monkeypatch.setattr(presets, "DATA", tmp_path / "big")
    presets.load_preset.cache_clear()
    result = answer("forecast", JOB, "--on", "a100-40gb-sxm:8", "--micro-batch", "1")
    assert result["strategy"]["mesh"]["dp_shard"] == 8
    assert any("dp_shard" in line and "a copy on each device would need" in line for line in result["assumptions"])
    assert answer("forecast", JOB, "--on", "a100-40gb-sxm", "--micro-batch", "1")["memory"]["fits"] is False


def test_inference_needs_less_than_training():
    train, infer = (answer("forecast", JOB, "--on", "t4", "--mode", mode) for mode in ("train", "infer"))
    assert infer["step_time_s"]["value"] <= train["step_time_s"]["value"]
    assert infer["strategy"]["mode"] == "infer"


def test_a_saved_trace_is_a_job(tmp_path: Path):
    save(synthetic_family(Strategy("amp-bf16")), tmp_path / "job.npz")
    result = answer("forecast", "job.npz", "--on", "h100-sxm")
    assert result["job"] == "synthetic"
    assert result["strategy"]["precision"] == "amp-bf16"
    refused = run("forecast", "job.npz", "--on", "h100-sxm", "--precision", "fp32")
    assert refused.exit_code == 2
    assert "was recorded with precision amp-bf16, not fp32" in refused.stderr


def test_fit_names_the_largest_micro_batch_and_what_each_technique_frees():
    result = answer("fit", JOB, "--on", "rtx-4090")
    assert result["largest_micro_batch"] > 1
    assert result["techniques"][0]["technique"] == "as asked"
    assert "rtx-4090" in run("fit", JOB, "--on", "rtx-4090").stdout


def test_compare_keeps_the_order_and_says_why():
    result = answer("compare", JOB, "--on", "t4, h100-sxm", "--micro-batch", "64")
    assert [row["device"] for row in result["rows"]] == ["t4", "h100-80gb-sxm"]
    assert all(row["reason"] for row in result["rows"])
    assert "speed-up" in run("compare", JOB, "--on", "t4,h100-sxm").stdout
    assert answer("compare", JOB, "--on", "t4", "--on", "h100-sxm", "--micro-batch", "64") == result


@pytest.mark.parametrize("verb", [("serve-plan", "gpt2", "--rate", "5/s"), ("forecast", JOB)])
def test_an_empty_list_of_devices_is_no_list_of_all(verb: tuple[str, ...]):
    result = run(*verb, "--on", "")
    assert result.exit_code == 2
    assert "device" in result.stderr


def test_plan_ranks_and_writes_a_plan_that_reads_back(tmp_path: Path):
    result = run(*PLAN, "--json", "-o", "plan.toml")
    assert result.exit_code == 0, result.output
    actual = json.loads(result.stdout)
    best = actual["plans"][0]
    keys = {"rank", "offer", "device", "count", "strategy", "forecast", "hours", "usd", "finish_probability", "reasons"}
    assert keys <= set(best)
    assert [plan["rank"] for plan in actual["plans"]] == list(range(1, len(actual["plans"]) + 1))
    assert actual["rejected"]
    assert "wrote plan.toml" in result.stderr
    saved = load_plan(tmp_path / "plan.toml")
    assert saved.to_dict() == {**best, "reasons": list(saved.reasons), "reason_notes": saved.to_dict()["reason_notes"]}
    assert saved.job_argument == JOB


def test_plan_flags_reach_the_request():
    owned = answer(*PLAN, "--own", "rtx-4090:2", "--on", "rtx-4090", "--no-spot", "--global-batch", "64")
    terms = {plan["offer"]["terms"] for plan in owned["plans"]}
    assert "owned" in terms
    assert "spot" not in terms
    for plan in owned["plans"]:
        mesh = plan["strategy"]["mesh"]
        each = plan["strategy"]["micro_batch"] * plan["strategy"]["accumulation"]
        assert each * mesh["dp_replicate"] * mesh["dp_shard"] == 64
    spot = answer(*PLAN, "--spot", "--on", "h100-sxm", "--interruptions", "3")
    assert {plan["offer"]["terms"] for plan in spot["plans"]} == {"spot"}


def test_plan_of_a_preset_imports_no_torch(recordings: Path):
    code = (
        "import sys, pathlib, gpuwise.trace.presets as presets\n"
        f"presets.DATA = pathlib.Path({str(recordings)!r})\n"
        "from gpuwise.cli.main import main\n"
        "for arguments in (%r, %r):\n"
        "    try: main(list(arguments))\n"
        "    except SystemExit as end: assert end.code == 0, end.code\n"
        "assert 'torch' not in sys.modules\n"
    ) % (PLAN, ("forecast", JOB, "--on", "t4"))
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_what_is_not_recorded_asks_for_torch_when_that_is_absent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    result = run("forecast", JOB, "--on", "t4", "--adapter", "lora")
    assert result.exit_code == 2
    assert "torch is needed to trace tabular-mlp in" in result.stderr
    assert 'try: pip install "gpuwise[torch]"' in result.stderr


def test_chips_filters_and_marks_what_is_unverified():
    result = answer("chips", "memory>=24GB", "kind=gpu-consumer")
    assert result
    assert all(chip["kind"] == "gpu-consumer" and chip["memory_bytes"] >= 24e9 for chip in result)
    shown = run("chips").stdout
    assert f"{len(hardware.load_catalog().chips)} chips" in shown
    assert "? unverified" in shown
    assert answer("chips", "memory>=100TB") == []


def test_offers_are_cheapest_first_with_dates():
    result = answer("offers", "h100-sxm", "--spot")
    prices = [offer["usd_per_hour"] / max(offer["count"], 1e-9) for offer in result]
    assert prices == sorted(prices)
    assert {offer["terms"] for offer in result} == {"spot"}
    shown = run("offers", "h100-sxm").stdout
    assert "price of" in shown
    assert all(offer["source"]["as_of"] for offer in result)


def test_offers_without_a_price_are_counted_and_listed_with_the_reason():
    rows = answer("offers", "--unpriced")
    assert len(rows) == len(hardware.load_catalog().incomplete_offers)
    assert all(row["why"] and row["source"] for row in rows)
    assert f"{len(rows)} more cannot be planned with; --unpriced" in run("offers").stdout
    assert "h100-80gb-sxm" in run("offers", "provider=colab", "--unpriced").stdout
    nowhere = run("offers", "qualcomm")
    assert nowhere.exit_code == 0
    assert "no offer passes this filter" in nowhere.stdout
    assert "cannot be planned with" in nowhere.stdout


def test_caveats_stand_under_the_table():
    assert "! b300-288gb-sxm: Blackwell Ultra cut int8" in run("chips", "b300").stdout
    shown = run("offers", "provider=nebius").stdout
    assert '[1] a "from" price' in shown
    assert " [1]\n" in shown


def test_nothing_inside_names_the_cheapest_the_fastest_and_a_way_that_works(tmp_path: Path):
    wanted = ("plan", JOB, "--samples", "1T", "--budget", "5", "--deadline", "1h", "--on", "t4,l4,h100-sxm", "-o", "out.toml")
    result = run(*wanted)
    assert result.exit_code == 2
    assert "inside a budget of $5.00 and a deadline of 1 h: every plan takes longer. The cheapest is" in result.stderr
    assert "the fastest is" in result.stderr
    actual = json.loads(run(*wanted, "--json").stdout)
    assert actual["error"]["code"] == "no-plan"
    assert actual["cheapest"]["usd"] <= actual["fastest"]["usd"]
    assert not list(tmp_path.iterdir())
    # without a deadline, free tiers that would take decades are out too: the message says so, and no budget of $0
    year = run("plan", JOB, "--samples", "1e15", "--budget", "5", "--on", "t4")
    assert "inside a budget of $5.00 and a year" in year.stderr
    assert "$0.00: --budget" not in year.stderr


CATALOGS = {
    "syntax": (b"[chip.t4\n", "line 1: not valid TOML"),
    "unknown key": (b"[chip.t4]\nmemory_gb = 5\n", "line 2: unknown key 'memory_gb'"),
    "unknown section": (b"[chips.t4]\n", "line 1: unknown section 'chips'"),
    "wrong type": (b'[chip.t4]\ntdp_w = "seventy"\n', "line 2: tdp_w must be a number"),
    "out of range": (b"[chip.t4]\ntdp_w = -7\n", "line 2: tdp_w = -7 is out of range"),
    "unknown chip": (
        b'[[offer]]\nprovider = "me"\ninstance = "x"\nchip = "t5"\ncount = 1\non_demand_usd_per_hour = 1\n',
        "unknown chip 't5'",
    ),
    "not UTF-8": (b'[chip.t4]\nname = "\xff\xfe"\n', "line 2: not UTF-8"),
    "a folder": (None, "cannot be read"),
}


@pytest.mark.parametrize("name", CATALOGS)
def test_a_corrupted_user_catalog_is_named_with_its_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    content, text = CATALOGS[name]
    file = tmp_path / "config" / "gpuwise" / "mine.toml"
    file.parent.mkdir(parents=True)
    file.mkdir() if content is None else file.write_bytes(content)
    monkeypatch.delenv("GPUWISE_CONFIG_DIR")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for arguments in (("offers", "t4"), (*PLAN, "-o", "out.toml"), ("doctor",)):
        result = run(*arguments)
        assert result.exit_code == 2, arguments
        assert f"{file}" in result.stderr
        assert text in result.stderr
        assert "\n  try: " in result.stderr
        assert json.loads(run(*arguments, "--json").stdout)["error"]["code"] == "bad-file"
    assert not (tmp_path / "out.toml").exists()


def test_doctor_tells_versions_dates_and_presets():
    result = answer("doctor")
    assert result["versions"]["gpuwise"]
    assert result["chips"] == len(hardware.load_catalog().chips)
    assert result["presets"][JOB] == "2.13.0"
    assert result["presets"]["resnet50"] is None
    assert any("resnet50" in problem for problem in result["problems"])
    assert result["config_files"] == []
    assert "recorded presets" in run("doctor").stdout


def test_doctor_names_the_users_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "mine.toml").write_text('[chip.t4]\nstreet_price_usd = 500\nsource = "me"\nas_of = "2026-11"\n')
    monkeypatch.setenv("GPUWISE_CONFIG_DIR", str(tmp_path))
    assert answer("doctor")["config_files"] == [str(tmp_path / "mine.toml")]


def test_record_refuses_what_is_no_preset():
    result = run("record", "resnet5")
    assert result.exit_code == 2
    assert "unknown preset 'resnet5'" in result.stderr


BAD_INPUT = [
    (("forecast", JOB, "--on", "rtx-4o90"), "nearest: rtx-4090"),
    (("forecast", JOB, "--on", "h100"), "'h100' is ambiguous"),
    (("forecast", JOB, "--on", "t4:0"), "cannot read the count '0'"),
    (("forecast", JOB, "--on", "t4:99999x99999"), "make sense"),
    (("forecast", JOB, "--on", "t4:2", "--mesh", "dp=4"), "the mesh dp=4 is of 4 devices, but 't4:2' names 2"),
    (("forecast", JOB, "--on", "t4:2", "--mesh", "tp=2"), "blocks"),
    (("forecast", JOB, "--on", "t4", "--mesh", "dp"), "cannot read mesh 'dp'"),
    (("forecast", JOB, "--on", "t4", "--micro-batch", "0"), "micro-batch must be a whole number from 1"),
    (("forecast", JOB, "--on", "t4", "--micro-batch", "-3"), "micro-batch must be a whole number from 1"),
    (("forecast", JOB, "--on", "t4", "--micro-batch", "many"), "not a valid integer"),
    (("forecast", JOB, "--on", "t4", "--accumulate", "0"), "accumulation must be a whole number from 1"),
    (("forecast", JOB, "--on", "t4", "--mode", "infer", "--accumulate", "2"), "no use for --accumulate"),
    (("forecast", JOB, "--on", "t4", "--precision", "fp31"), "fp31"),
    (("forecast", JOB, "--on", "t4", "--seq-len", "128"), "tabular-mlp has no sequence length"),
    (("forecast", "resnet50", "--on", "t4", "--image-size", "-1"), "--image-size must be a whole number from 1"),
    (("forecast", "gpt2", "--on", "t4", "--seq-len", "4096"), "must be from 1 to 1,024"),
    (("forecast", "resnet5", "--on", "t4"), "nearest: resnet50"),
    (("forecast", "nothing.py", "--on", "t4"), "names"),
    (("forecast", "nothing.npz", "--on", "t4"), "there is no trace file nothing.npz"),
    (("compare", JOB, "--on", "t4,,h100-sxm"), "cannot read the devices"),
    (("compare", JOB, "--on", "t4,h10"), "h10"),
    (("fit", JOB, "--on", "t4", "--micro-batch", "0"), "micro-batch must be a whole number from 1"),
    (("plan", JOB, "--budget", "lots"), "as an amount of dollars"),
    (("plan", JOB, "--budget=-5"), "cannot be negative"),
    (("plan", JOB, "--deadline", "5"), "as a duration"),
    (("plan", JOB, "--deadline", "0d"), "must be above zero"),
    (("plan", JOB, "--samples", "-5"), "must be above zero"),
    (("plan", JOB, "--samples", "1e30"), "not a sensible number"),
    (("plan", JOB, "--tokens", "many"), "as a number of tokens"),
    (("plan", JOB, "--tokens", "5M"), "not tokens"),
    (("plan", JOB, "--tokens", "1", "--samples", "5"), "more than one of"),
    (("plan", JOB, "--epochs", "nan"), "epochs must be a number above zero"),
    (("plan", JOB, "--own", "rtx-4090:2x2"), "does not say how machines of rtx-4090"),
    (("plan", JOB, "--own", "nonsense:2"), "unknown chip 'nonsense'"),
    (("plan", JOB, "--global-batch", "0"), "global batch must be a number above zero"),
    (("plan", JOB, "--global-batch", "1000000000000"), "at most 10,000,000"),
    (("plan", JOB, "--micro-batch", "1000000000000"), "at most 10,000,000"),
    (("plan", JOB, "--micro-batch", "0"), "micro batch must be a number above zero"),
    (("plan", JOB, "--epochs", "0"), "epochs must be a number above zero"),
    (("plan", "resnet50", "--epochs", "1e300"), "is no sensible number"),
    (("plan", JOB, "--samples", "1M", "--interruptions", "-1"), "interruptions a day must be from 0 to 1,440"),
    (("plan", JOB, "--samples", "1M", "--interruptions", "1e30"), "interruptions a day must be from 0 to 1,440"),
    (("plan", JOB, "--samples", "1M", "--electricity", "nan"), "the price of electricity"),
    (("plan", JOB, "--samples", "1M", "--own", "nonsense:0"), "cannot read the count '0'"),
    (("plan", JOB, "--samples", "1M", "--own", "here"), "this machine is always considered"),
    (("plan", JOB, "--samples", "1M", "--on", "h100-sxm:5"), "no machine with 5 × h100-80gb-sxm is offered"),
    (("plan", JOB, "--samples", "1M", "--on", "alveo-u250"), "chip cannot train"),
    (("train", JOB, "--seed", "99999999999999999999999"), "the seed must be a whole number"),
    (("train", JOB, "--steps", "0"), "steps must be above zero"),
    (("offers", "t4", "--spot", "--unpriced"), "exclude each other"),
    (("train", JOB, "--plan", "none.toml"), "there is no plan file none.toml"),
    (("train", JOB, "--plan", "p.toml", "--micro-batch", "4"), "--micro-batch and --plan exclude each other"),
    (("chips", "nonsense"), "unknown chip 'nonsense'"),
    (("chips", "colour=red"), "unknown filter field 'colour'"),
    (("offers", "price<cheap"), "as an amount of dollars"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD_INPUT, ids=[" ".join(a) for a, _ in BAD_INPUT])
def test_bad_input_is_explained_and_nothing_is_written(arguments: tuple[str, ...], said: str, tmp_path: Path):
    writes = ("-o", "out.toml") if arguments[0] == "plan" else ("--log", "out.log") if arguments[0] == "train" else ()
    result = run(*arguments, *writes)
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert result.stderr.startswith("error: ")
    assert "\n  try: " in result.stderr
    assert result.stdout == ""
    as_json = run(*arguments, *writes, "--json")
    assert as_json.exit_code == 2
    error = json.loads(as_json.stdout)["error"]
    assert error["code"]
    assert error["message"]
    assert error["ways_out"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"not a trace", b"\x93NUMPY"])
def test_a_foreign_trace_is_refused(content: bytes, tmp_path: Path):
    (tmp_path / "job.npz").write_bytes(content)
    result = run("forecast", "job.npz", "--on", "t4")
    assert result.exit_code == 2
    assert "job.npz is not a gpuwise trace" in result.stderr


@pytest.mark.parametrize("kept", [4, -1])
def test_a_truncated_trace_is_refused(kept: int, tmp_path: Path):
    save(synthetic_family(Strategy()), tmp_path / "job.npz")
    (tmp_path / "job.npz").write_bytes((tmp_path / "job.npz").read_bytes()[:kept])
    result = run("forecast", "job.npz", "--on", "t4")
    assert result.exit_code == 2
    assert "job.npz is not a gpuwise trace" in result.stderr


@pytest.mark.parametrize("content", ["", "a = 1", 'format = "gpuwise-plan"\nversion = 99', "{"])
def test_a_foreign_or_damaged_plan_is_refused(content: str, tmp_path: Path):
    (tmp_path / "plan.toml").write_text(content)
    result = run("train", JOB, "--plan", "plan.toml")
    assert result.exit_code == 2
    assert "plan.toml is" in result.stderr


def test_a_corrupted_user_catalog_names_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "mine.toml").write_text("[chip.t4]\ntdp_w = 'warm'\n")
    monkeypatch.setenv("GPUWISE_CONFIG_DIR", str(tmp_path))
    result = run("chips")
    assert result.exit_code == 2
    assert "mine.toml" in result.stderr
    assert "line 2" in result.stderr or ":2" in result.stderr


def test_nothing_inside_the_budget_shows_the_cheapest_and_the_fastest(tmp_path: Path):
    arguments = (*PLAN, "--samples", "100B", "--budget", "1", "--deadline", "1d", "--on", "h100-sxm", "-o", "p.toml")
    result = run(*arguments)
    assert result.exit_code == 2
    assert "The cheapest is" in result.stderr
    assert "the fastest is" in result.stderr
    error = json.loads(run(*arguments, "--json").stdout)
    assert error["error"]["code"] == "no-plan"
    assert error["cheapest"]["usd"] <= error["fastest"]["usd"]
    assert not (tmp_path / "p.toml").exists()


@pytest.mark.parametrize("flags", [("--recompute", "full"), ("--optimizer", "sgd"), ("--accumulate", "4")])
def test_a_forward_pass_refuses_what_only_training_does(flags: tuple[str, str]):
    result = run("forecast", "gpt2", "--on", "t4", "--mode", "infer", *flags)
    assert result.exit_code == 2
    assert f"a forward pass has no use for {flags[0]}" in result.stderr


def test_compile_is_taken_and_said_to_be_priced_as_eager():
    result = run("forecast", "tabular-mlp", "--on", "rtx-4090", "--compile", "--json")
    assert json.loads(result.stdout)["strategy"]["compile"] is True
    assert any("torch.compile" in warning for warning in json.loads(result.stdout)["warnings"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [({"job": 3, "on": "t4"}, "a name or a gpuwise.Job"), ({"job": "gpt2", "on": 3}, "devices are named")],
)
def test_python_callers_get_input_errors_too(arguments: dict, said: str):
    with pytest.raises(InputError, match=said):
        gpuwise.compare(**arguments)
