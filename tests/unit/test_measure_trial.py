"""Real steps: what they hold is what was recorded, what they spend their time on has a name, the suite suits the machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gpuwise.errors import UnknownNameError
from gpuwise.hardware import load_catalog
from gpuwise.job import Job
from gpuwise.job.job import meta_model
from gpuwise.measure import trial
from gpuwise.measure.suite import LARGEST_SCALE, SUITE, Member, members, scaled
from gpuwise.measure.suite_jobs import suite_job
from gpuwise.measure.trial import kind_of_operator, run_trial
from gpuwise.measure.trial_memory import REST, memory_on_cpu
from gpuwise.runtime.build.program import build
from gpuwise.strategy import Strategy
from gpuwise.trace.memory import live_bytes
from gpuwise.tracing import record

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_setting_of_the_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would hold for all tests of this process."""
    monkeypatch.setattr(trial, "keep_freed_memory", lambda: False)


def small_job() -> Job:
    return suite_job(SUITE["digits-cnn"])


@pytest.mark.parametrize(
    "strategy",
    [
        Strategy(micro_batch=8),
        Strategy(micro_batch=8, accumulation=3),
        Strategy(micro_batch=8, optimizer="momentum", optimizer_kernels="foreach"),
        Strategy(micro_batch=8, optimizer_in_backward=True),
        Strategy(micro_batch=8, mode="infer"),
    ],
)
def test_the_peak_is_that_of_the_recording_by_category(strategy: Strategy):
    job = small_job()
    answer = live_bytes(record(job, strategy, target="cpu").with_accumulation(strategy.accumulation), granule_bytes=1)
    program, peak = memory_on_cpu(lambda: build(job, strategy, CPU))
    assert program.trains == (strategy.mode == "train")
    assert peak.allocated_bytes == pytest.approx(answer.peak_bytes, rel=0.01)
    assert sum(peak.by_category.values()) == peak.allocated_bytes
    for name in ("parameter", "optimizer_state", "input"):
        assert peak.by_category[name] == answer.by_category[name], name
    assert peak.by_category[REST] > 0


def test_a_trial_times_as_many_steps_as_asked():
    result = run_trial(small_job(), Strategy(micro_batch=2), CPU, steps=4)
    assert result.step.rounds == 4
    assert 0 < result.step.low_s <= result.step.median_s <= result.step.high_s
    assert set(result.shares) == {"arithmetic", "moving bytes", "overhead"}
    assert sum(result.shares.values()) == pytest.approx(1)
    assert all(share >= 0 for share in result.shares.values())


@pytest.mark.parametrize(
    ("done", "passed_s", "steps", "more"),
    [
        (0, 100.0, None, True),  # one step at least, however long
        (6, 10.0, None, True),
        (7, 10.0, None, False),
        (500, 4.9, None, True),
        (3, 41.0, None, False),
        (3, 41.0, 4, True),
        (4, 0.1, 4, False),
    ],
)
def test_it_ends_when_it_has_seen_enough(done: int, passed_s: float, steps: int | None, more: bool):
    assert trial._more(done, passed_s, steps) is more


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::addmm", "arithmetic"),
        ("aten::mkldnn_convolution", "arithmetic"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "arithmetic"),
        ("aten::mkldnn_rnn_layer_backward", "arithmetic"),
        ("aten::add_", "moving bytes"),
        ("aten::_fused_adamw_", "moving bytes"),
        ("aten::native_layer_norm", "moving bytes"),
        ("aten::view", None),
        ("AddmmBackward0", None),
        ("autograd::engine::evaluate_function: AddmmBackward0", None),
    ],
)
def test_operators_are_told_apart_by_what_they_do(name: str, kind: str | None):
    assert kind_of_operator(name) == kind


def test_the_suite_is_a_dozen_jobs_whose_models_are_as_said():
    assert len(SUITE) == 12
    for member in members():
        job = suite_job(member)
        assert (job.name, job.seq_len, job.image_size) == (member.name, member.seq_len, member.image_size)
        parameters = sum(p.numel() for p in meta_model(job).parameters())
        for unit, scale in (("M", 1e6), ("k", 1e3)):
            answer = member.words.rpartition(f" {unit} parameters")[0].rpartition(" ")[2]
            assert not answer or float(answer) == pytest.approx(parameters / scale, rel=0.02)
    with pytest.raises(UnknownNameError, match="lstmm"):
        members(("lstmm",))
    assert [member.name for member in members(("dlrm", "mlp", "dlrm"))] == ["dlrm", "mlp"]


def test_a_larger_machine_takes_larger_batches_in_powers_of_two():
    member, chip = Member("resnet50", "", 2), load_catalog().chips["h100-80gb-sxm"]
    sizes = [scaled(member, replace(chip, peak_flops_per_s={"fp32": peak})) for peak in (1e9, 2e11, 3.1e11, 1e13, 1e18)]
    assert sizes == [2, 2, 4, 128, 2 * LARGEST_SCALE]
    assert scaled(member, replace(chip, peak_flops_per_s={})) == 2
