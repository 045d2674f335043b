"""Power: what the law gives against published measurements, and its limits."""

import pytest

from gpuwise.cost.parameters import parameters
from gpuwise.cost.power import share_of_tdp


@pytest.mark.parametrize(
    ("arithmetic", "bandwidth", "measured"),
    [
        # Image models set no figure. FLUX.1-dev, 1,024 x 1,024 pixels, on an H100 and a B200,
        # whose operations follow from 12 billion parameters and 4,608 tokens (ml-energy/leaderboard, 2026-02).
        (0.57, 0.3, 0.98),
        (0.37, 0.3, 0.92),
    ],
)
def test_power_of_image_generation(arithmetic, bandwidth, measured):
    assert share_of_tdp(arithmetic, bandwidth, parameters().power) == pytest.approx(measured, rel=0.15)


def test_power_lies_between_waiting_and_the_limit_and_grows_with_work():
    figures = parameters().power
    assert share_of_tdp(0.0, 0.0, figures) == figures["waiting"]
    assert share_of_tdp(1.0, 1.0, figures) == 1.0
    assert share_of_tdp(0.1, 0.2, figures) < share_of_tdp(0.2, 0.2, figures) < share_of_tdp(0.2, 0.4, figures)
