"""Jobs with a step of their own, and optimizers that evaluate the loss themselves: the numbers of plain PyTorch."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from tests.training_samples import loss, points, toy, train, training
from torch import nn
from torch.nn import functional as F

from gpuwise.errors import GpuwiseError, InputError, JobError, UnsupportedError
from gpuwise.job import Job
from gpuwise.runtime.build.own_step import StepContext
from gpuwise.runtime.build.program import build
from gpuwise.runtime.data import MicroBatchLoader
from gpuwise.strategy import Strategy

STEPS, SIZE, NOISE = 6, 8, 3
STRATEGY = Strategy(micro_batch=SIZE)


class Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(NOISE, 16), nn.ReLU(), nn.Linear(16, 4))
        self.discriminator = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 1))


def losses(model: Gan, real: torch.Tensor) -> tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]:
    """Of the discriminator and of the generator."""
    ones = torch.ones(len(real), 1)
    fake = model.generator(torch.randn(len(real), NOISE))
    guess = F.binary_cross_entropy_with_logits
    return (
        lambda: guess(model.discriminator(real), ones) + guess(model.discriminator(fake.detach()), 1 - ones),
        lambda: guess(model.discriminator(fake), ones),
    )


def gan_step(context: StepContext, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    of_discriminator, of_generator = losses(context.model, batch["x"])
    context.zero_grad("discriminator")
    d = of_discriminator()
    context.backward(d)
    context.update("discriminator")
    context.zero_grad("generator")
    g = of_generator()
    context.backward(g)
    context.update("generator")
    return {"loss": d + g, "discriminator": d, "generator": g}


OPTIMIZERS = {
    "discriminator": lambda model: torch.optim.AdamW(model.discriminator.parameters(), lr=0.02),
    "generator": lambda model: torch.optim.SGD(model.generator.parameters(), lr=0.05, momentum=0.9),
}


def gan(**changes) -> Job:
    return toy(model=Gan, loss=None, step=gan_step, optimizer=OPTIMIZERS, evaluate=None, **changes)


def batches_of(job: Job):
    return itertools.islice((batch for (batch,) in MicroBatchLoader(job, STRATEGY, seed=0).steps()), STEPS)


def gan_by_hand(job: Job, precision: str = "fp32", *, clip_norm: float | None = None, factor=lambda step: 1.0):
    """The same without gpuwise: an update at a time, each forward pass in an autocast region of its own."""
    data = list(batches_of(job))
    torch.manual_seed(0)
    model = Gan()
    optimizers = {name: make(model) for name, make in OPTIMIZERS.items()}
    rates = {name: optimizer.param_groups[0]["lr"] for name, optimizer in optimizers.items()}
    results = []
    for number, batch in enumerate(data):
        for name, optimizer in optimizers.items():
            optimizer.param_groups[0]["lr"] = rates[name] * factor(number)
        region = (lambda: torch.autocast("cpu", dtype=torch.bfloat16)) if precision == "amp-bf16" else nullcontext
        with region():
            computed = losses(model, batch["x"])
        values = []
        for (name, optimizer), compute in zip(optimizers.items(), computed, strict=True):
            optimizer.zero_grad()
            with region():
                value = compute()
            value.backward()
            if clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(getattr(model, name).parameters(), clip_norm)
            optimizer.step()
            values.append(value.item())
        results.append(values)
    return model, results


def same(ours: nn.Module, theirs: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


@pytest.mark.parametrize("precision", ["fp32", "amp-bf16"])
@pytest.mark.parametrize("changes", [{}, {"clip_norm": 0.3}, {"schedule": "linear"}], ids=["plain", "clipped", "linear"])
def test_a_gan_trains_as_in_a_loop_by_hand(precision, changes):
    job = gan(**changes)
    factor = (lambda step: 1 - step / STEPS) if "schedule" in changes else (lambda step: 1.0)
    theirs, values = gan_by_hand(job, precision, clip_norm=changes.get("clip_norm"), factor=factor)
    run = training(job, STRATEGY.but(precision=precision), steps=STEPS)
    ours = [dict(step.parts) for step in run]
    assert [[parts["discriminator"], parts["generator"]] for parts in ours] == values
    assert same(run.result.model, theirs)


def test_fp16_scales_the_gradients_of_every_optimizer():
    """On a CPU fp16 autocast computes in half precision: near the fp32 run, and its scale is one for both optimizers."""
    run = training(gan(clip_norm=1.0), STRATEGY.but(precision="amp-fp16"), steps=STEPS)
    results = [step.loss for step in run]
    plain = [step.loss for step in training(gan(clip_norm=1.0), STRATEGY, steps=STEPS)]
    assert results == pytest.approx(plain, rel=0.02)
    program = build(gan(), STRATEGY.but(precision="amp-fp16"), "cpu")
    program.step([points(SIZE)])
    assert program.scaler.get_scale() == 65536.0
    for parameter in program.model.generator.parameters():
        parameter.data.fill_(1e30)
    before = [p.clone() for p in program.model.discriminator.parameters()]
    program.step([points(SIZE)])  # overflows
    assert all(torch.equal(a, b) for a, b in zip(before, program.model.discriminator.parameters(), strict=True))
    assert program.scaler.get_scale() == 32768.0


@pytest.mark.parametrize("precision", ["fp32", "amp-fp16"])
def test_a_gan_that_was_stopped_goes_on_with_the_same_bits(tmp_path, precision):
    def run(name, *leave_at):
        results = []
        for last in (*leave_at, None):
            run = training(
                gan(ema_decay=0.9, schedule="cosine"), STRATEGY.but(precision=precision), steps=STEPS, folder=tmp_path / name
            )
            for step in run:
                results.append((step.step, step.loss, dict(step.parts)))
                if step.step == last:
                    break
        return results, run.result.model

    (whole, model), (parts, resumed) = run("whole"), run("parts", 2, 4)
    assert parts == whole
    assert same(resumed, model)


def test_another_set_of_optimizers_does_not_go_on(tmp_path):
    train(gan(), STRATEGY, steps=2, folder=tmp_path)
    other = {"critic": OPTIMIZERS["discriminator"], "generator": OPTIMIZERS["generator"]}

    def step(context, batch):
        context.optimizers["discriminator"] = context.optimizers["critic"]
        return gan_step(context, batch)

    with pytest.raises(GpuwiseError, match="has the optimizers discriminator, generator; the job has critic, generator"):
        train(toy(model=Gan, loss=None, step=step, optimizer=other, evaluate=None), STRATEGY, steps=4, folder=tmp_path)


def test_parts_are_in_the_log_the_writers_and_the_result(tmp_path):
    result = train(gan(), STRATEGY, steps=3, folder=tmp_path)
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    steps = [record for record in records if record["record"] == "step"]
    assert all(set(record["parts"]) == {"discriminator", "generator"} for record in steps)
    assert set(result.loss_parts) == {"discriminator", "generator"}
    assert result.last_loss == pytest.approx(sum(result.loss_parts.values()))
    assert result.to_dict()["loss_parts"] == result.loss_parts


def test_parts_of_a_plain_loss_are_means_over_the_micro_batches():
    def in_parts(model, batch):
        result = loss(model, batch)
        return {"loss": result + 0.5, "half": 0.5, "first": batch["x"][0, 0], "entropy": result}

    strategy = Strategy(micro_batch=8, accumulation=2)
    ours, plain = [], []
    for step in training(toy(loss=in_parts), strategy, steps=4):
        ours.append(step)
    for step in training(toy(), strategy, steps=4):
        plain.append(step.loss)
    assert [step.parts["entropy"] for step in ours] == plain
    assert [step.loss for step in ours] == pytest.approx([value + 0.5 for value in plain])
    assert {step.parts["half"] for step in ours} == {0.5}
    first = list(itertools.islice(MicroBatchLoader(toy(), strategy, seed=0).steps(), 4))
    assert [step.parts["first"] for step in ours] == pytest.approx([(a["x"][0, 0] + b["x"][0, 0]).item() / 2 for a, b in first])


@pytest.mark.parametrize(
    ("returned", "what"),
    [
        (lambda value: {"entropy": value}, 'none of it is "loss"'),
        (
            lambda value: {"loss": value, "logits": torch.zeros(3)},
            '"logits" of what the loss returned must be a tensor with one',
        ),
        (lambda value: {"loss": 1.0}, '"loss" of what the loss returned is a float'),
        (lambda value: (value, {}), "a dict of them, got tuple"),
    ],
)
def test_a_loss_of_another_form_is_refused(returned, what):
    with pytest.raises(JobError, match=what):
        train(toy(loss=lambda model, batch: returned(loss(model, batch))), STRATEGY, steps=1)


def test_lbfgs_trains_as_in_a_loop_by_hand():
    job = toy(optimizer=lambda parameters: torch.optim.LBFGS(parameters, lr=0.3, max_iter=5, line_search_fn="strong_wolfe"))
    data = list(batches_of(job))
    torch.manual_seed(0)
    model = job.model()
    optimizer = job.optimizer(model.parameters())
    values = []
    for batch in data:

        def closure(batch=batch):
            optimizer.zero_grad()
            value = loss(model, batch)
            value.backward()
            return value

        values.append(optimizer.step(closure).item())
    run = training(job, STRATEGY, steps=STEPS)
    assert [step.loss for step in run] == values
    assert same(run.result.model, model)


def test_lbfgs_that_was_stopped_goes_on_with_the_same_bits(tmp_path):
    job = toy(optimizer=lambda parameters: torch.optim.LBFGS(parameters, lr=0.3, max_iter=4, history_size=6))

    def run(name, *leave_at):
        results = []
        for last in (*leave_at, None):
            for step in training(job, STRATEGY, steps=STEPS, folder=tmp_path / name):
                results.append((step.step, step.loss))
                if step.step == last:
                    break
        return results

    assert run("parts", 1, 4) == run("whole")


def test_one_optimizer_needs_no_name_and_can_be_another():
    def step(context, batch):
        value = loss(context.model, batch)
        context.backward(value)
        context.update()
        return value

    ours = training(toy(step=step, optimizer="sgd"), STRATEGY, steps=STEPS)
    plain = training(toy(optimizer="sgd"), STRATEGY, steps=STEPS)
    assert [step.loss for step in ours] == [step.loss for step in plain]
    assert same(ours.result.model, plain.result.model)
    other = training(toy(step=step, optimizer="sgd"), STRATEGY.but(optimizer="adamw"), steps=STEPS)
    assert [step.loss for step in other] == [step.loss for step in training(toy(optimizer="adamw"), STRATEGY, steps=STEPS)]


def test_several_updates_of_one_optimizer_in_a_step():
    """Three of a critic for each of the generator; under fp16 that has no meaning, and is refused."""

    def step(context, batch):
        for _ in range(3):
            of_discriminator, of_generator = losses(context.model, batch["x"])
            context.zero_grad("discriminator")
            value = of_discriminator()
            context.backward(value)
            context.update("discriminator")
        context.zero_grad("generator")
        context.backward(of_generator())
        context.update("generator")
        return value

    job = toy(model=Gan, loss=None, step=step, optimizer=OPTIMIZERS, evaluate=None)
    program = build(job, STRATEGY, "cpu")
    program.step([points(SIZE)])
    assert all(state["step"] == 3 for state in program.optimizer.parts["discriminator"].state.values())
    assert all(p.grad is None for p in program.model.parameters())
    with pytest.raises(JobError, match="updates 'discriminator' twice"):
        build(job, STRATEGY.but(precision="amp-fp16"), "cpu").step([points(SIZE)])


def test_parameters_that_no_update_reaches_are_named():
    def step(context, batch):
        of_discriminator, _ = losses(context.model, batch["x"])
        value = of_discriminator()
        context.backward(value)
        context.update("discriminator")
        return value

    result = train(toy(model=Gan, loss=None, step=step, optimizer=OPTIMIZERS, evaluate=None), STRATEGY, steps=2)
    assert any("no gradient reaches generator.0.weight" in note for note in result.notes)


REFUSED = {
    "accumulation": (gan(), STRATEGY.but(accumulation=2), "cannot accumulate"),
    "in backward": (gan(), STRATEGY.but(optimizer_in_backward=True), "not inside backward"),
    "kept gradients": (gan(), STRATEGY.but(keep_gradients=True), "clears gradients itself"),
    "compile": (gan(), STRATEGY.but(compile=True), "not compiled as a whole"),
    "optimizer": (gan(), STRATEGY.but(optimizer="adamw"), "its own optimizers \\(discriminator, generator\\)"),
    "kernels": (gan(), STRATEGY.but(optimizer_kernels="foreach"), "its own optimizers"),
    "inference": (gan(), STRATEGY.but(mode="infer"), "no forward pass"),
    "closure and accumulation": (toy(optimizer=torch.optim.LBFGS), STRATEGY.but(accumulation=2), "evaluates the loss itself"),
    "closure and fp16": (toy(optimizer=torch.optim.LBFGS), STRATEGY.but(precision="amp-fp16"), "scaled inside a closure"),
    "closure and clipping": (toy(optimizer=torch.optim.LBFGS, clip_norm=1.0), STRATEGY, "clipped inside a closure"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_meaning_is_refused_before_anything_starts(case):
    job, strategy, what = REFUSED[case]
    with pytest.raises((UnsupportedError, InputError), match=what) as caught:
        build(job, strategy, "cpu")
    assert caught.value.ways_out


def test_a_forward_pass_of_its_own_stands_for_inference():
    job = gan(forward=lambda model, batch: model.discriminator(batch["x"]))
    program = build(job, STRATEGY.but(mode="infer"), "cpu")
    batch = job.batch(4)
    assert torch.equal(program.infer(batch), program.model.discriminator(batch["x"]))


def test_no_step_is_skipped():
    with pytest.raises(UnsupportedError, match="none can be skipped"):
        train(gan(), STRATEGY, steps=2, on_nonfinite="skip")


def test_mistakes_in_the_step_are_named():
    def of(step, **changes) -> Job:
        return toy(**{"model": Gan, "loss": None, "step": step, "optimizer": OPTIMIZERS, "evaluate": None, **changes})

    for job, what in [
        (of(lambda context, batch: context.update("critic")), "names the optimizer 'critic'; the job has 'discrim"),
        (of(lambda context, batch: context.update()), "names the optimizer None"),
        (of(lambda context, batch: None), "the step must be a tensor with one number, or a dict of them, got NoneType"),
        (of(gan_step, optimizer={"discriminator": lambda model: model}), "'discriminator' is a Gan, not a torch.optim"),
        (of(gan_step, optimizer={"d": lambda model: model.critic}), "'d' cannot be made: AttributeError"),
        (toy(step=lambda context, batch: context.update(), optimizer=torch.optim.LBFGS), "its update needs a closure"),
    ]:
        with pytest.raises(JobError, match=what):
            train(job, STRATEGY, steps=1)


def test_a_job_says_what_is_trained():
    with pytest.raises(JobError, match="needs a loss, or a step"):
        toy(loss=None)
    with pytest.raises(JobError, match="named optimizers need a step"):
        toy(optimizer=OPTIMIZERS)
    with pytest.raises(JobError, match="named optimizers are a dict"):
        toy(step=gan_step, optimizer={"generator": "adam"})
    with pytest.raises(JobError, match="named optimizers are a dict"):
        toy(step=gan_step, optimizer={})
