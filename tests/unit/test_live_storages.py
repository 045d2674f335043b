"""What the counter of storages counts, against bytes computed by hand."""

from __future__ import annotations

import torch

from gpuwise.measure.live_storages import LiveStorages

FLOAT_BYTES = 4


def test_storages_count_from_birth_to_death_whoever_holds_them() -> None:
    parameters, inputs, outputs = FLOAT_BYTES * (100 * 50 + 50), FLOAT_BYTES * 8 * 100, FLOAT_BYTES * 8 * 50
    with LiveStorages() as live:
        layer = torch.nn.Linear(100, 50)
        assert live.live_bytes == parameters
        x = torch.randn(8, 100)
        y = layer(x)
        assert live.live_bytes == parameters + inputs + outputs
        view = y.relu().view(-1)
        assert live.live_bytes == parameters + inputs + 2 * outputs  # autograd and a view have one storage
        del view
        y.sum().backward()
        del y
        assert live.live_bytes == 2 * parameters + inputs  # with gradients
        layer.weight.untyped_storage().resize_(0)
        assert live.live_bytes == 2 * parameters + inputs - FLOAT_BYTES * 100 * 50


def test_the_peak_has_what_lives_between_operators() -> None:
    with LiveStorages() as live:
        x = torch.ones(1000)
        for _ in range(2):
            with live.measuring():
                y = x.neg()
                z = y.neg()
                del y, z
        assert live.peak_bytes == 3 * 1000 * FLOAT_BYTES
        assert live.live_bytes == 1000 * FLOAT_BYTES
