"""Models of published measurements, written from descriptions, have the sizes that their publishers report."""

import pytest

torch = pytest.importorskip("torch")

from benchmarks.zoo.master_adam import MasterAdam  # noqa: E402
from benchmarks.zoo.recommendation import NeuMf, view_batch, view_loss  # noqa: E402
from benchmarks.zoo.transformer_xl import (  # noqa: E402
    TRANSFORMER_XL,
    TransformerXl,
    _shifted,
    transformer_xl_batch,
    transformer_xl_loss,
)


def parameters(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("size", "count"), [("base", 191_948_759), ("large", 519_963_095)])
def test_transformer_xl_has_as_many_parameters_as_its_logs_say(size, count):
    with torch.device("meta"):
        assert parameters(TransformerXl(TRANSFORMER_XL[size])) == count


def test_scores_by_distance_move_to_the_keys_they_belong_to():
    # Query i of 2 sees 3 keys; column d of the input holds the score of the key that lies 2 - d positions back of key 2.
    scores = torch.arange(6.0).reshape(1, 1, 2, 3)
    assert _shifted(scores)[0, 0].tolist() == [[1.0, 2.0, 0.0], [3.0, 4.0, 5.0]]


def test_transformer_xl_and_collaborative_filtering_learn():
    from dataclasses import replace

    torch.manual_seed(0)
    small = replace(TRANSFORMER_XL["base"], words=50, layers=2, width=16, heads=2, inner=32, dropout=0.0)
    trained = [
        (TransformerXl(small), transformer_xl_batch(3, config=small, seq_len=4), transformer_xl_loss),
        (NeuMf(users=138_493, items=26_744, factors=2, widths=(8, 4)), view_batch(64), view_loss),
    ]
    for model, batch, loss in trained:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        first = loss(model, batch).item()
        for _ in range(5):
            optimizer.zero_grad()
            loss(model, batch).backward()
            optimizer.step()
        assert loss(model, batch).item() < first


@pytest.mark.parametrize("fused", [False, True])
def test_master_copies_move_half_precision_parameters(fused):
    weight = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimizer = MasterAdam([weight], lr=0.1, fused=fused)
    (weight.float().sum() * 2).backward()
    optimizer.step()
    assert (weight < 1).all()
    assert optimizer.state[weight]["master"].dtype == torch.float32


def test_ssd_has_8732_boxes():
    from gpuwise.job.torchvision_cpu import make_importable

    make_importable()
    pytest.importorskip("torchvision")
    from benchmarks.zoo.ssd import SSD_BOXES, Ssd300

    with torch.device("meta"):
        boxes, scores = Ssd300()(torch.empty(2, 3, 300, 300))
    assert boxes.shape == (2, 4, SSD_BOXES)
    assert scores.shape == (2, Ssd300.CLASSES, SSD_BOXES)
