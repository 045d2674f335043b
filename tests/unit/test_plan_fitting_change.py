"""The smallest change that fits: its order, what it leaves out, and that every verb that says DOES NOT FIT names it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import pytest
from click.testing import CliRunner
from test_plan_synthetic import synthetic_source

from gpuwise import api
from gpuwise.cli.main import main
from gpuwise.errors import DoesNotFitError, UnsupportedError
from gpuwise.hardware import load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.links import link_inside
from gpuwise.plan.fit.change import FitProblem, FittingChange, NoFittingChange
from gpuwise.plan.fit.change_search import fitting_change
from gpuwise.plan.fit.fit import fit
from gpuwise.plan.fit.least_bytes import least_kept_bytes
from gpuwise.plan.pricing.step import StepPricer
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.strategy import Mesh, Strategy
from gpuwise.trace.memory import kept_bytes
from gpuwise.trace.presets import load_preset

CATALOG = load_catalog()
GIB = 2**30
BIG = {"width": 8192, "layers": 40}  # 2.7 G parameters: 10 GiB of them, 10 of gradients and 20 of optimizer state


def asked_of(
    capacity_gib: float,
    *,
    host_gib: float | None = 64,
    asked: Strategy | None = None,
    source=None,
    chip: str = "rtx-4090",
    devices: int = 1,
    **more,
):
    chip_here = CATALOG.chip(chip)
    cluster = Cluster(
        chip_here, devices, inside=link_inside(chip_here, devices, catalog=CATALOG), memory_bytes=int(capacity_gib * GIB)
    )
    source = source or synthetic_source(**BIG)
    host = None if host_gib is None else int(host_gib * GIB)
    asked = asked or Strategy("amp-bf16", optimizer="adamw")
    return fitting_change(FitProblem(StepPricer(StepTraces(source)), asked, cluster, host, job="j", **more))


def recorded(name: str):
    """The shipped recordings alone, with their adapters."""

    def source(strategy: Strategy):
        plain = Strategy(strategy.precision, recompute=strategy.recompute, adapter=strategy.adapter)
        family = load_preset(name, precision=strategy.precision, recompute=strategy.recompute, adapter=strategy.adapter)
        if family is None or strategy.but(optimizer=None) != plain:
            raise UnsupportedError(f"no recording of {strategy.adapter} in {strategy.precision}")
        return family

    return source


def test_what_trains_the_same_comes_first_then_smaller_state():
    """With less and less memory the answer changes more and more."""
    results = [asked_of(gib, asked=Strategy("amp-bf16", optimizer="adamw", micro_batch=64)) for gib in (60, 30, 24)]
    assert all(isinstance(answer, FittingChange) for answer in results)
    same, host, eight_bit = results[0], results[1], asked_of(30, host_gib=16)
    assert same.forecast.strategy.micro_batch * same.forecast.strategy.accumulation == 64
    assert not same.changes_training
    assert host.forecast.strategy.offload == "optimizer"
    assert not host.changes_training
    assert host.host_bytes >= 40 * GIB
    assert "offload of the optimizer" not in " ".join(eight_bit.techniques)  # the host has too little memory
    assert eight_bit.forecast.strategy.optimizer in ("adamw-8bit", "adamw-4bit")
    assert eight_bit.changes_training


def test_an_answer_leaves_some_of_the_device_free():
    for gib in (26, 30, 36, 44):
        memory = asked_of(gib).forecast.memory
        assert memory.device_bytes <= 0.95 * memory.capacity_bytes


def test_nothing_lighter_on_the_ladder_fits():
    """Held against the plain search: no technique of an earlier line alone makes it fit."""
    answer = asked_of(30)
    rows = fit(
        StepPricer(StepTraces(synthetic_source(**BIG))),
        Cluster(CATALOG.chip("rtx-4090"), memory_bytes=int(30 * GIB)),
        precision="amp-bf16",
        requested=Strategy("amp-bf16", optimizer="adamw"),
    ).rows
    fits = {row.technique for row in rows if row.largest_micro_batch and row.memory.device_bytes <= 0.95 * 30 * GIB}
    earlier = {"selective recompute", "full recompute", "optimizer in backward"}
    assert answer.techniques[-1] not in earlier
    assert not fits & earlier


def test_seven_billion_parameters_on_12_gib_are_adapted_in_4_bits():
    """As people do it: QLoRA with recomputation (Dettmers et al. 2023 tune 7B models on 12 GB cards)."""
    answer = asked_of(11.86, source=recorded("llama2-7b"), asked=Strategy("amp-bf16"), chip="rtx-3060-12gb")
    assert answer.techniques == ("full recompute", "QLoRA")
    assert answer.changes_training
    weights = 6_738_415_616
    assert weights / 2 < answer.forecast.memory.by_category["parameter"] < 0.75 * weights
    loose = asked_of(46, source=recorded("llama2-7b"), asked=Strategy("amp-bf16"), host_gib=32)
    assert loose.forecast.strategy.adapter == "lora"


def test_where_nothing_fits_it_says_what_was_not_tried():
    result = asked_of(2.0, source=recorded("llama2-7b"), asked=Strategy("amp-bf16"))
    assert isinstance(result, NoFittingChange)
    assert any("host memory" in line for line in result.not_tried)


def test_samples_are_shortened_last():
    source = recorded("llama2-7b")
    cluster = Cluster(CATALOG.chip("rtx-3060-12gb"), memory_bytes=int(11.86 * GIB))
    traces = StepTraces(
        source, with_seq_len=lambda length: StepTraces(source, sizes={"seq_len": length}), sizes={"seq_len": 16384}
    )
    long = fitting_change(FitProblem(StepPricer(traces), Strategy("amp-bf16"), cluster, 64 * GIB, "llama2-7b", "rtx-3060"))
    assert isinstance(long, FittingChange)
    assert long.sizes["seq_len"] in (2048, 4096, 8192)
    assert f"--seq-len {long.sizes['seq_len']}" in long.command
    assert any("shorter than 16,384" in note for note in long.notes)


def test_samples_are_not_shortened_where_parameters_and_state_alone_are_too_large():
    def shorter(length: int) -> StepTraces:
        raise AssertionError(f"recorded at {length}")

    source = recorded("llama2-7b")
    traces = StepTraces(source, with_seq_len=shorter, sizes={"seq_len": 2048})
    cluster = Cluster(CATALOG.chip("rtx-3060-12gb"), memory_bytes=3 * GIB)  # 3.3 GB of weights in 4 bits
    result = fitting_change(FitProblem(StepPricer(traces), Strategy("amp-bf16"), cluster, 16 * GIB, "llama2-7b", "rtx-3060"))
    assert isinstance(result, NoFittingChange)
    assert result.hopeless


@pytest.mark.parametrize(
    ("precision", "adapter"), [("amp-bf16", "none"), ("amp-bf16", "lora"), ("amp-bf16", "qlora"), ("bf16", "none")]
)
def test_what_a_step_keeps_at_least_is_near_what_its_recording_keeps(precision: str, adapter: str):
    """The bound is taken from the plain step in mixed precision, of which a shipped recording is there."""
    shipped = [
        load_preset("llama2-7b", precision=each, adapter=of) for each, of in (("amp-bf16", "none"), (precision, adapter))
    ]
    plain, other = (family.at(micro_batch=1) for family in shipped if family is not None)
    least = least_kept_bytes(plain, other.header.strategy)
    assert 0.4 * kept_bytes(other) <= least <= kept_bytes(other)


def test_the_golden_question_is_answered_without_pytorch_and_its_command_holds():
    code = (
        "import sys\nfor name in ('torch', 'peft', 'bitsandbytes', 'torchao'): sys.modules[name] = None\n"
        "from gpuwise.cli.main import main\nmain(['fit', 'llama2-7b', '--on', 'rtx-3060', '--json'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)["answer"]
    words = shlex.split(answer["command"])
    assert words[:3] == ["gpuwise", "forecast", "llama2-7b"]
    shown = json.loads(CliRunner().invoke(main, [*words[1:], "--json"]).stdout)
    assert shown["memory"]["fits"] is True
    assert shown["fits_with"] is None
    assert shown["step_time_s"]["value"] == pytest.approx(answer["step_time_s"]["value"])
    assert answer["run_command"].startswith("gpuwise train llama2-7b ")


def test_the_commands_for_shards_name_their_mesh_once():
    answer = asked_of(40, asked=Strategy("amp-bf16", mesh=Mesh(dp_shard=2), micro_batch=2), devices=2)
    assert isinstance(answer, FittingChange)
    assert answer.command.count("--mesh dp_shard=2") == answer.command.count("--mesh") == 1
    assert answer.run_command.count("--mesh") == 1


def test_forecast_compare_and_plan_name_what_would_fit():
    requested = ("llama2-7b", "--on", "rtx-3060")
    forecast = CliRunner().invoke(main, ["forecast", *requested]).stdout
    assert "DOES NOT FIT" in forecast
    assert "--adapter qlora" in forecast
    [row] = api.compare("llama2-7b", on="rtx-3060").rows
    assert "it would with full recompute, QLoRA" in row.reason
    with pytest.raises(DoesNotFitError) as error:
        api.plan("llama2-7b", on="rtx-3060", samples=1000)
    assert "b300-288gb-sxm" in error.value.ways_out[0]
    assert "--adapter qlora" in error.value.ways_out[1]
    planned = api.plan("llama2-7b", on="rtx-3060", samples=1000, adapter="qlora", recompute="full")
    assert planned.best.strategy.adapter == "qlora"


def test_what_fits_has_no_answer_beside_it():
    assert api.fit("gpt2", on="rtx-4090").answer is None
    assert api.forecast("gpt2", on="rtx-4090").fits_with is None


def test_a_batch_that_is_too_large_is_accumulated():
    result = api.forecast("gpt2", on="rtx-4090", micro_batch=256, precision="amp-bf16").fits_with
    assert result["changes_training"] is False
    strategy = result["strategy"]
    assert strategy["micro_batch"] * strategy["accumulation"] == 256
    assert "--accumulate" in result["command"]
