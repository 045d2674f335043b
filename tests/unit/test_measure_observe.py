"""Steps that really run and are watched: the rows are those that the virtual device records, and each has its seconds."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, replace
from functools import partial
from itertools import count, pairwise
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from calibration_samples import samples  # noqa: E402
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks  # noqa: E402
from tracing_samples import attention_job, cnn_job, mlp_job, rows  # noqa: E402

from gpuwise.cost.calibration.machine import parse_machine  # noqa: E402
from gpuwise.measure import observe as module  # noqa: E402
from gpuwise.measure import worker  # noqa: E402
from gpuwise.measure.observe import MOST_STEPS, Observation, observe  # noqa: E402
from gpuwise.measure.operation_timer import OperationTimer  # noqa: E402
from gpuwise.measure.samples import StepSamples  # noqa: E402
from gpuwise.measure.stages import Stage  # noqa: E402
from gpuwise.results.measurement import MeasuredRow  # noqa: E402
from gpuwise.strategy import Strategy  # noqa: E402
from gpuwise.trace import COLUMNS  # noqa: E402
from gpuwise.tracing.record import record_many  # noqa: E402

CPU = torch.device("cpu")
JOBS = {"mlp": mlp_job, "cnn": cnn_job, "attention": attention_job}
STRATEGIES = {
    "train": Strategy(micro_batch=4, optimizer="adamw"),
    "infer": Strategy(micro_batch=4, mode="infer"),
    "half": Strategy(micro_batch=4, precision="amp-bf16"),
}


def recorded(job, strategy):
    return record_many(job, strategy, [strategy.micro_batch], target="cpu", once=[strategy.micro_batch])[0]


def assert_same(trace, expected):
    (ours, numbers), (theirs, their_numbers) = numbered(trace), numbered(expected)
    assert ours == theirs
    # A real CPU keeps the statistics of a batch norm in fp32, a recorded one in bf16: bytes that are nothing beside its images.
    np.testing.assert_allclose(numbers, their_numbers, rtol=5e-3)


def numbered(trace):
    """The rows and the numbers of their operations. A recording is of a program that accumulates, whose loss is divided."""
    kept = [place for place, row in enumerate(rows(trace)) if row[0] != "div"]
    known = np.arange(len(COLUMNS)) != COLUMNS.index("workspace_bytes")  # not told of kernels that ran
    return [rows(trace)[place] for place in kept], trace.operations.values[trace.sequence.operation[kept]][:, known]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_the_rows_are_those_of_a_recording(job, strategy):
    result, expected = observe(job(), strategy, CPU, steps=2, least_s=0.0).trace, recorded(job(), strategy)
    assert_same(result, expected)
    assert result.model_flops == expected.model_flops
    assert result.header.target == "cpu"
    for name in ("precision", "mode", "micro_batch", "accumulation"):
        assert getattr(result.header.strategy, name) == getattr(expected.header.strategy, name) == getattr(strategy, name)


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize("steps", [1, 3])
def test_every_row_of_every_step_has_its_seconds(mode, steps):
    result = observe(mlp_job(), STRATEGIES[mode], CPU, steps=steps, least_s=0.0)
    assert result.seconds.shape == (steps, len(result.trace.sequence))
    assert result.step_s.shape == (steps,)
    assert (result.seconds > 0).all()
    assert (result.step_s > 0).all()
    assert np.isfinite(result.unseen_s)


def test_short_steps_are_repeated_for_a_while_but_not_for_ever(monkeypatch):
    assert len(observe(mlp_job(), STRATEGIES["infer"], CPU, steps=1, least_s=1e9).step_s) == MOST_STEPS
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=count(step=0.01).__next__))
    assert 1 < len(observe(mlp_job(), STRATEGIES["infer"], CPU, steps=1, least_s=0.5).step_s) < MOST_STEPS


def watched(monkeypatch):
    """Parameters as each program that is built leaves them."""
    programs, build = [], module.build
    monkeypatch.setattr(module, "build", lambda *given: programs.append(build(*given)) or programs[-1])
    return programs


def test_every_step_trains(monkeypatch):
    programs, seen = watched(monkeypatch), []

    def looked(program, *_):
        seen.append(torch.cat([p.detach().flatten() for p in program.model.parameters()]).clone())

    one_step, step_s = module.one_step, module._step_s
    monkeypatch.setattr(module, "one_step", lambda *given: (one_step(*given), looked(*given))[0])
    monkeypatch.setattr(module, "_step_s", lambda *given: (step_s(*given), looked(*given))[0])
    observe(mlp_job(), STRATEGIES["train"], CPU, steps=3, least_s=0.0)
    assert len(programs) == 1
    assert len(seen) == 6, "watched and not, in turn"
    assert all(not torch.equal(before, after) for before, after in pairwise(seen))
    assert all(after.isfinite().all() for after in seen)


def test_inference_changes_nothing(monkeypatch):
    programs = watched(monkeypatch)
    observe(mlp_job(), STRATEGIES["infer"], CPU, steps=2, least_s=0.0)
    (program,) = programs
    assert not program.trains
    assert all(p.grad is None for p in program.model.parameters())


def test_accumulation_is_not_repeated():
    result = observe(mlp_job(), replace(STRATEGIES["train"], accumulation=8), CPU, steps=1, least_s=0.0)
    assert result.trace.header.strategy.accumulation == 1
    assert_same(result.trace, recorded(mlp_job(), STRATEGIES["train"]))


def test_a_job_that_cannot_run_raises_and_leaves_no_hooks():
    def raising(model, batch):
        raise ValueError("the sky fell")

    before = len(_global_optimizer_pre_hooks), len(_global_optimizer_post_hooks)
    with pytest.raises(Exception, match="the sky fell"):
        observe(replace(mlp_job(), loss=raising), STRATEGIES["train"], CPU)
    assert (len(_global_optimizer_pre_hooks), len(_global_optimizer_post_hooks)) == before
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_what_operations_take_beside_their_kernels():
    trace = recorded(mlp_job(), STRATEGIES["infer"])
    length = len(trace.sequence)
    result = Observation(trace, np.full((3, length), 1e-5), np.full(3, length * 1.5e-5))
    assert result.unseen_s == pytest.approx(5e-6)


def test_operations_that_launch_nothing_count_as_what_a_call_takes_beside_its_kernel():
    """Batch norm's empty reserve in inference, say: no forecast prices it."""
    trace = recorded(cnn_job(), STRATEGIES["train"])
    launches = trace.operations.column("kernels")[trace.sequence.operation] > 0
    assert 0 < launches.sum() < len(launches)
    seconds = np.where(launches, 1e-5, 4e-5)[None].repeat(3, axis=0)
    result = Observation(trace, seconds, np.full(3, seconds[0].sum() + 1e-6 * launches.sum()))
    assert result.unseen_s == pytest.approx((4e-5 * (~launches).sum() + 1e-6 * launches.sum()) / launches.sum())


def test_steps_that_other_programs_interrupt_say_nothing_of_a_call():
    trace = recorded(mlp_job(), STRATEGIES["infer"])
    length = len(trace.sequence)
    step_s = np.array([length * 1.5e-5] * 3 + [1e-2] * 7)  # most steps lose the core for a while
    assert Observation(trace, np.full((10, length), 1e-5), step_s).unseen_s == pytest.approx(5e-6)


def test_seconds_are_those_of_the_clock_and_views_have_no_row():
    """A clock that goes on by a second a look: each operation takes one, a step those of all its looks."""
    result = observe(attention_job(), STRATEGIES["infer"], CPU, steps=2, least_s=0.0, clock=count(step=1.0).__next__)
    assert result.seconds.shape == (2, len(result.trace.sequence))
    assert (result.seconds == 1.0).all()
    assert result.step_s.tolist() == [1.0, 1.0]


def test_a_short_step_is_one_that_follows_another(monkeypatch):
    runs, seconds = [], iter([0.0, 5e-3, 1.0, 1.004, 2.0, 2.5])
    program = SimpleNamespace(trains=False, job=mlp_job(), infer=runs.append)
    short = module._step_s(program, STRATEGIES["infer"], CPU, lambda: next(seconds))
    assert (len(runs), short) == (2, pytest.approx(4e-3))
    assert runs[0] is runs[1], "on the same batch"
    assert (module._step_s(program, STRATEGIES["infer"], CPU, lambda: next(seconds)), len(runs)) == (0.5, 3)


def test_the_timer_times_operators_in_their_order_and_nothing_that_is_paused():
    recorder = SimpleNamespace(paused=False)
    ticks = iter([0.0, 1.0, 10.0, 12.0])
    timer = OperationTimer(CPU, recorder, clock=ticks.__next__)
    x = torch.ones(4)
    with timer:
        timer.start()
        y = x + 1
        recorder.paused = True
        z = y * 3
        recorder.paused = False
        total = z.sum()
        assert timer.resolve() == [1.0, 2.0]
        timer.start()
        assert timer.resolve() == []
    assert total == 24.0


def test_the_worker_says_what_it_saw(monkeypatch):
    """One network, as the measuring process runs it, and its answer as the other reads it."""
    messages = []

    class Child:
        def send(self, **answer):
            messages.append(json.loads(json.dumps(answer)))

    monkeypatch.setattr(worker, "NETWORKS", (("small", mlp_job(), 4),))
    monkeypatch.setattr(worker, "observe", partial(observe, least_s=0.0))
    worker.run_stage(Stage("network", "training steps", network=0, mode="train", steps=2), CPU, Child())
    (answer,) = messages
    row, samples = MeasuredRow.from_dict(answer["row"]), StepSamples.from_dict(answer["samples"])
    assert (row.group, row.name, row.dtype, row.timing.rounds) == ("step", "small", "fp32", 2)
    assert row.flops == samples.flops > 0
    assert samples.name == "small, fp32, train"
    assert {kernel_class for kernel_class, _, _ in samples.classes} >= {"gemm", "optimizer"}


def test_a_small_network_keeps_its_samples_on_every_machine(monkeypatch):
    messages = []
    monkeypatch.setattr(worker, "SMALL", (("tiny", mlp_job(), 3),))
    monkeypatch.setattr(worker, "scaled", lambda samples, device: 64 * samples)
    monkeypatch.setattr(worker, "observe", partial(observe, least_s=0.0))
    child = SimpleNamespace(send=lambda **answer: messages.append(answer))
    worker.run_stage(Stage("small", "passes of small networks", network=0, mode="infer", steps=2), CPU, child)
    (answer,) = messages
    assert (answer["row"]["name"], answer["row"]["sizes"]) == ("tiny", {"micro_batch": 3})
    assert answer["kernels"] == []
    assert StepSamples.from_dict(answer["samples"]).mode == "infer"


class Asked:
    """A WorkerConnection that was asked this."""

    def __init__(self, **request):
        self.request, self.said = request, []

    def send(self, **answer):
        self.said.append(answer)


def run_worker(monkeypatch, **request):
    requested = Asked(**request)
    monkeypatch.setattr(worker, "WorkerConnection", lambda: requested)
    monkeypatch.setattr(worker, "keep_freed_memory", lambda: True)  # it would be for all tests that follow
    with warnings.catch_warnings():
        worker.main()
    return requested.said


@pytest.mark.parametrize("error", [RuntimeError("no memory\nat all"), MemoryError(), OSError(28, "No space left on device")])
def test_a_stage_that_fails_leaves_the_others(error, monkeypatch):
    ran = []

    def run_stage(stage, device, child):
        ran.append(stage.what)
        if stage.what == "second":
            raise error
        child.send(row=stage.what)

    monkeypatch.setattr(worker, "run_stage", run_stage)
    names = ["first", "second", "third"]
    text = run_worker(monkeypatch, device="cpu", stages=[asdict(Stage("launch", name)) for name in names])
    assert ran == names
    assert [answer.get("begun") for answer in text if "begun" in answer] == [0, 1, 2]
    assert [answer["row"] for answer in text if "row" in answer] == ["first", "third"]
    (note,) = [answer["note"]["text"] for answer in text if "note" in answer]
    assert note.startswith(f"second left out: {type(error).__name__}")
    assert "\n" not in note


def test_the_worker_looks_around(monkeypatch):
    (seen,) = run_worker(monkeypatch)
    assert seen["device"] == ("cuda" if torch.cuda.is_available() else "cpu")
    assert 4 <= seen["quick"] < seen["networks"]
    assert seen["half"] in (None, "amp-bf16")
    assert (seen["torch"], seen["threads"]) == (torch.__version__, torch.get_num_threads())


def test_the_worker_fits_what_was_said():
    threads = torch.get_num_threads()
    result = worker.fit({"samples": [s.to_dict() for s in samples()[-1:]], "figures": {"peak_flops_per_s": {"fp32": 2e11}}})
    torch.set_num_threads(threads)
    data = {"schema": 1, "level": "machine", "of": "x", "entry": result["entries"], "spread": result["spreads"]}
    assert set(parse_machine(data, "here.toml").file.entries) == set(result["entries"]) >= {"gemm.fp32", "optimizer"}
    assert result["errors"] == {}


def test_the_fit_is_of_this_measurement_and_not_of_the_one_before(monkeypatch):
    chip = worker.measured_chip({"peak_flops_per_s": {"fp32": 2e11, "bf16": 3e11}, "memory_bandwidth_bytes_per_s": 3e10})
    assert chip.calibration == ""
    assert chip.memory_bandwidth_bytes_per_s == 3e10
    assert (chip.peak_flops_per_s["fp32"], chip.peak_flops_per_s["bf16"]) == (2e11, 3e11)
    sheet = worker.measured_chip({})
    assert set(sheet.peak_flops_per_s) <= set(chip.peak_flops_per_s)
