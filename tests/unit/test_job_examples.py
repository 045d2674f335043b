"""The example jobs: real data without a network, and they learn."""

from __future__ import annotations

import runpy
from importlib.util import find_spec
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gpuwise import Trainer  # noqa: E402
from gpuwise.errors import JobError  # noqa: E402
from gpuwise.job import checked_batch, fingerprint, repeated_blocks, resolve  # noqa: E402
from gpuwise.job.batches import named_tensors  # noqa: E402

EXAMPLES = Path(__file__).parents[2] / "examples"


def shapes(batch):
    return {key: (t.shape[1:], t.dtype) for key, t in named_tensors(batch)}


def test_digits_learns():
    pytest.importorskip("sklearn")
    job = resolve(f"{EXAMPLES}/digits.py:job")
    data = job.data()
    assert len(data["digit"]) == job.samples == 1437
    assert shapes(data) == shapes(checked_batch(job, 4))
    torch.manual_seed(0)
    model = job.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.learning_rate)
    for _ in range(4):
        for rows in torch.randperm(job.samples).split(64):
            job.loss(model, {key: column[rows] for key, column in data.items()}).backward()
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    assert job.evaluate(model)["test_accuracy"] > 0.9


def test_char_gpt_learns():
    job = resolve(f"{EXAMPLES}/char_gpt.py:job", seq_len=32)
    data = job.data()
    assert len(data) == job.samples
    assert job.seq_len == job.tokens_per_sample == 32
    batch = torch.utils.data.default_collate([data[index] for index in range(0, 3200, 100)])
    assert shapes(batch) == shapes(checked_batch(job, 4))
    assert (batch["tokens"][:, 1:] == batch["labels"][:, :-1]).all()
    torch.manual_seed(0)
    model = job.model()
    before = job.evaluate(model)["held_out_loss"]
    assert before == pytest.approx(torch.log(torch.tensor(96.0)).item(), rel=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.learning_rate)
    for _ in range(15):
        job.loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert job.evaluate(model)["held_out_loss"] < before - 1
    assert len(repeated_blocks(model)) == 3
    assert fingerprint(job) != fingerprint(resolve(f"{EXAMPLES}/char_gpt.py:job"))  # another position table


@pytest.mark.slow
def test_the_text_is_held_out_and_long_enough():
    from importlib import util

    spec = util.spec_from_file_location("char_gpt_example", EXAMPLES / "char_gpt.py")
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert len(module.text()) == module.CHARACTERS
    train, test = module.splits()
    assert len(train) + len(test) == module.CHARACTERS
    assert train.min() >= 0
    assert train.max() < len(module.ALPHABET) == 96


def test_a_run_by_hand_goes_on_with_the_same_bits(tmp_path):
    def losses(folder, *leaving):
        settings = {"steps": 30, "micro_batch": 64, "run": tmp_path / folder, "progress": "silent", "preemption": "none"}
        trainer = Trainer(resolve(f"{EXAMPLES}/by_hand.py:job"), precision="fp32", **settings)
        results = []
        for last in (*leaving, None):
            for step in trainer:
                results.append((step.step, step.loss, step.learning_rate))
                if step.step == last:
                    break
        return results, trainer

    whole, trainer = losses("whole")
    assert [step for step, _, _ in whole] == list(range(1, 31))
    assert trainer.result.metrics["accuracy"] > 0.5
    in_parts, trainer = losses("in-parts", 10, 20)
    assert in_parts == whole
    assert trainer.result.resumed_from == 20
    assert trainer.export(tmp_path / "weights").is_file()


def test_a_run_by_hand_as_a_script(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source = (EXAMPLES / "by_hand.py").read_text().replace("epochs=10", "epochs=3")
    (tmp_path / "by_hand.py").write_text(source)
    runpy.run_path("by_hand.py", run_name="__main__")
    answer = capsys.readouterr().out
    assert f"in {tmp_path / 'runs/spirals'}" in answer
    assert "step 100 of 138: loss" in answer
    assert "finished at step 138" in answer
    assert (tmp_path / "runs/spirals/model.safetensors").is_file()


@pytest.mark.slow
def test_the_gan_comes_nearer_to_real_digits():
    pytest.importorskip("sklearn")
    job = resolve(f"{EXAMPLES}/gan.py:job")
    assert shapes(job.data()) == shapes(checked_batch(job, 4))
    torch.manual_seed(0)
    before = job.evaluate(job.model())["distance"]
    trainer = Trainer(job, steps=150, micro_batch=128, precision="fp32", progress="silent", preemption="none")
    result = trainer.run()
    assert set(result.loss_parts) == {"discriminator", "generator"}
    assert result.metrics["distance"] < 0.9 * before
    assert not any("no gradient" in note or "moved" in note for note in result.notes)


def test_graphs_are_told_apart():
    job = resolve(f"{EXAMPLES}/graphs.py:job")
    assert len(job.data().dataset) == job.samples == 1500
    assert job.samples_in(checked_batch(job, 5)) == 5
    trainer = Trainer(job, epochs=2, micro_batch=32, precision="fp32", progress="silent", preemption="none")
    assert trainer.run().metrics["accuracy"] > 0.5  # a third by guessing


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of peft and what it imports
@pytest.mark.skipif(find_spec("peft") is None, reason="needs peft")
def test_lora_fine_tunes_what_was_trained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = {"micro_batch": 8, "precision": "fp32", "progress": "silent", "preemption": "none"}
    job = resolve(f"{EXAMPLES}/lora.py:job")
    assert len(job.data()) == job.samples
    with pytest.raises(JobError, match="is not here; train it"):
        Trainer(job, steps=1, adapter="lora", **settings).run()
    base = Trainer(resolve(f"{EXAMPLES}/char_gpt.py:job"), steps=30, **settings)
    base.run()
    weights = {name: value.clone() for name, value in base.model.state_dict().items()}
    base.export("char-gpt.safetensors")
    before = job.evaluate(job.model())["held_out_loss"]
    tuned = Trainer(job, steps=30, adapter="lora", **settings)
    assert tuned.run().metrics["held_out_loss"] < before - 0.05
    trained = {name for name, p in tuned.model.named_parameters() if p.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)
    frozen = {name.replace(".base_layer", ""): value for name, value in tuned.model.state_dict().items() if "lora_" not in name}
    assert all(torch.equal(frozen[name], weights[name]) for name in weights)
