"""Strategy and Mesh: what they refuse, and that they read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import GpuwiseError, InputError, unknown_name
from gpuwise.strategy import OPTIMIZERS, PRECISIONS, RECOMPUTES, HostSettings, Mesh, Strategy

degrees = st.integers(1, 64)
strategies = st.builds(
    Strategy,
    precision=st.sampled_from(PRECISIONS),
    micro_batch=st.integers(1, 4096),
    accumulation=st.integers(1, 512),
    recompute=st.sampled_from(RECOMPUTES),
    mesh=st.builds(Mesh, dp_replicate=degrees, dp_shard=degrees, tp=degrees, pp=degrees),
    optimizer=st.none() | st.sampled_from(OPTIMIZERS),
    compile=st.booleans(),
)


@given(strategies)
def test_reads_back_equal_and_batches_multiply(strategy: Strategy) -> None:
    assert Strategy.from_dict(strategy.to_dict()) == strategy
    assert strategy.global_batch == strategy.micro_batch * strategy.accumulation * strategy.mesh.data_parallel


@pytest.mark.parametrize(
    "change",
    [
        {"precision": "fp7"},
        {"micro_batch": 0},
        {"micro_batch": -3},
        {"micro_batch": 2.5},
        {"accumulation": 10**9},
        {"recompute": "some"},
        {"optimizer": "magic"},
        {"mode": "dream"},
        {"micro_batch": True},
    ],
)
def test_refuses_nonsense(change: dict) -> None:
    with pytest.raises(InputError):
        Strategy(**change)


def test_mesh_parses_what_people_write() -> None:
    assert Mesh.parse("dp=8") == Mesh(dp_replicate=8)
    assert Mesh.parse("fsdp=4,tp=2") == Mesh(dp_shard=4, tp=2)
    assert Mesh.parse("dp=2,tp=4").devices == 8
    for text in ("", "dp", "dp=x", "dp=0", "q=3", "dp=2,dp=4", "dp=-1"):
        with pytest.raises(InputError):
            Mesh.parse(text)


@pytest.mark.parametrize("data", [{"color": 1}, {"mesh": 3}, {"mesh": {"zp": 2}}])
def test_refuses_unknown_keys(data: dict) -> None:
    with pytest.raises(InputError):
        Strategy.from_dict(data)


def test_errors_say_what_why_and_ways_out() -> None:
    error = unknown_name("chip", "rtx-409", ["rtx-4090", "rtx-4080", "h100"], listing="gpuwise chips")
    assert isinstance(error, GpuwiseError)
    assert "rtx-4090" in str(error)
    assert str(error).count("try:") == 2
    assert error.to_dict()["error"]["code"] == "unknown-name"  # type: ignore[index]
    assert len(GpuwiseError("x", ["a", "b", "c"]).ways_out) == 2


def test_host_settings_stand_among_the_keys_of_a_strategy_and_read_back() -> None:
    host = HostSettings(threads=2, pin_threads=False, loader_workers=0)
    together = {**Strategy(micro_batch=4).to_dict(), **host.to_dict()}
    assert together.keys() - Strategy().to_dict().keys() == {"threads", "pin_threads", "loader_workers"}
    assert Strategy.from_dict(together) == Strategy(micro_batch=4)
    assert HostSettings.from_dict(together) == host


@pytest.mark.parametrize("values", [{"threads": 0}, {"loader_workers": -1}, {"prefetch": 1.5}, {"pinned_memory": "yes"}])
def test_host_settings_refuse_nonsense(values: dict) -> None:
    with pytest.raises(InputError):
        HostSettings.from_dict(values)
