"""The example jobs: real data without a network, and they learn."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gpuwise.job import checked_batch, fingerprint, repeated_blocks, resolve  # noqa: E402
from gpuwise.job.job import named_tensors  # noqa: E402

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
