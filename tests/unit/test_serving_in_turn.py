"""Devices that work one after the other under llama.cpp, against what was published of it."""

from __future__ import annotations

import pytest

from gpuwise.api.serving import serve_plan
from gpuwise.errors import UnsupportedError

pytest.importorskip("torch")
from benchmarks.serving.in_turn import PUBLISHED, forecasts


@pytest.mark.parametrize("job", PUBLISHED)
def test_a_token_takes_as_long_on_several_cards_as_on_one(job: str):
    for device, (written_per_s, _) in forecasts(job).items():
        assert PUBLISHED[job][device][0] / written_per_s == pytest.approx(1, abs=0.25)


@pytest.mark.slow
def test_several_cards_hold_what_one_does_not():
    plan = serve_plan("llama3-70b", engine="llama.cpp", on="rtx-3090,rtx-3090:2", rate="1/h", input=64, output=64)
    served, fails = sorted(plan.rows, key=lambda row: -row.replicas)
    assert (served.device, served.replicas, fails.replicas) == ("rtx-3090:2", 1, 0)
    assert "are more than" in fails.reason
    assert any(note.kind == "layers-in-turn" for note in plan.assumption_notes)
    # Each card has half of the weights, does half of the work, and draws no more than its limit.
    assert 18e9 < served.weight_bytes < 24e9
    assert served.energy is not None
    assert served.energy.watts.value < 350


def test_machines_of_llama_cpp_have_no_figures():
    with pytest.raises(UnsupportedError, match="across machines"):
        serve_plan("llama3-8b", engine="llama.cpp", on="h100-sxm:8x2", rate="1/h")
