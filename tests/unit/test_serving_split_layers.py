"""Layers on a card and on its host: against bytes over bandwidth, and brute force over their number."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.api.host_layers import HostLayers
from gpuwise.api.serving import serve_plan
from gpuwise.errors import InputError, UnsupportedError
from gpuwise.hardware import load_catalog
from gpuwise.serving.split_layers import BESIDE_A_CARD, COPIED_FROM, LayerBytes, SplitStep, split_of

MB, GB = 10**6, 10**9
SIZES = LayerBytes(layers=10, layer=100 * MB, layer_cache=20 * MB, head=50 * MB, embedding=70 * MB, buffers=200 * MB)
LOCAL = {"engine": "llama.cpp", "rate": "2/h", "input": 64, "output": 32, "spread": 0}


class Reads:
    """A device that reads weights of so many seconds, and does nothing else but its head."""

    def __init__(self, layers_s: float, head_s: float) -> None:
        self._layers_s, self._head_s = layers_s, head_s

    def engine_s(self, users: int) -> float:
        return 0.0

    def head_s(self, rows: int) -> float:
        return self._head_s

    def layers_s(self, chunks, sequences: int, past_tokens: int) -> float:
        return self._layers_s


@pytest.mark.parametrize("gpu_layers", range(12))
def test_a_token_takes_the_bytes_of_each_part_over_its_bandwidth(gpu_layers: int):
    card_bandwidth, host_bandwidth, link = 1000 * GB, 50 * GB, 25 * GB
    weights = SIZES.layers * SIZES.layer
    card = Reads(weights / card_bandwidth, SIZES.head / card_bandwidth)
    host = Reads(weights / host_bandwidth, SIZES.head / host_bandwidth)
    step = SplitStep(card, host, SIZES, gpu_layers, link)  # type: ignore[arg-type]
    on_card = max(gpu_layers - 1, 0)
    head_s = SIZES.head / (card_bandwidth if gpu_layers else host_bandwidth)
    token_s = on_card * SIZES.layer / card_bandwidth + head_s
    token_s += BESIDE_A_CARD * (10 - on_card) * SIZES.layer / host_bandwidth
    assert step((), 1, 100) == pytest.approx(token_s)
    assert step([(COPIED_FROM - 2, 0)], 1, 100) == pytest.approx(token_s)
    # Longer passes copy what is on the host, and compute all of it on the card.
    copied_s = (10 - on_card) * SIZES.layer / link
    assert step([(COPIED_FROM - 1, 0)], 1, 100) == pytest.approx(weights / card_bandwidth + copied_s + head_s)


def test_all_layers_on_the_card_are_the_card_alone():
    card, host = Reads(1.0, 0.5), Reads(9.0, 9.0)
    step = SplitStep(card, host, SIZES, SIZES.most, 1.0)  # type: ignore[arg-type]
    assert step((), 1, 0) == step([(512, 0)], 0, 0) == 1.5


@given(st.integers(0, 40), st.integers(1, 400), st.integers(0, 90), st.integers(0, 300), st.integers(0, 20_000))
@settings(deadline=None, max_examples=80)
def test_as_many_layers_as_fit(layers: int, layer: int, cache: int, head: int, capacity: int):
    sizes = LayerBytes(layers + 1, layer, cache, head, 5, 10)
    most = sizes.most_on_card(capacity)
    fits = [n for n in range(sizes.most + 1) if sizes.on_card(n) <= capacity]
    assert most == (fits[-1] if fits else -1)
    for n in range(sizes.most + 1):  # nothing is lost: a part is here or there
        both = sizes.on_card(n) + sizes.on_host(n) - sizes.buffers - (layer if n < sizes.most else 0)
        assert both == (layers + 1) * (layer + cache) + head + 5


def test_what_does_not_fit_is_refused_with_the_way_out():
    def split(gpu_layers: int | None, card_bytes: int = 24 * GB, host_bytes: int = 64 * GB):
        return split_of(SIZES, gpu_layers, card="a card", card_bytes=card_bytes, host="a host", host_bytes=host_bytes)

    assert split(None).gpu_layers == split(11).gpu_layers == 11
    with pytest.raises(InputError, match="10 layers and its head") as refused:
        split(12)
    assert refused.value.ways_out == ("--gpu-layers 11 (all of them)", "--gpu-layers auto (as many as fit)")
    small = split(None, card_bytes=800 * MB)
    assert (small.gpu_layers, small.layers) == (4, 11)  # 200 + 50 + 3 x 120 + 100 MB
    with pytest.raises(InputError, match="a card") as refused:
        split(5, card_bytes=800 * MB)
    assert "--gpu-layers 4" in refused.value.ways_out
    with pytest.raises(InputError, match="a host") as refused:
        split(1, host_bytes=GB)
    assert any(way.startswith("--host-memory 2GiB") for way in refused.value.ways_out)
    with pytest.raises(InputError):
        split(None, card_bytes=100 * MB)


def test_texts():
    assert HostLayers.of(" AUTO ", host=None, memory_bytes=None) == HostLayers(None)
    assert HostLayers.of("12", host="here", memory_bytes=5) == HostLayers(12, "here", 5)
    for text in ("-1", "all", "", "1.5", "9" * 40, "٣"):
        with pytest.raises(InputError):
            HostLayers.of(text, host=None, memory_bytes=None)


def test_a_model_on_a_card_and_its_host():
    result = serve_plan("gpt2", on="rtx-4060", weights="gguf-f16", gpu_layers="10", host="ryzen-5950x", **LOCAL)
    (row,) = result.rows
    assert "10 of 13 layers, the head included, on the card" in str(result)
    assert any("ryzen-5950x and 64 GiB" in note for note in result.assumptions)
    catalog = load_catalog()
    card, host = catalog.chip("rtx-4060"), catalog.chip("ryzen-5950x")
    assert card.memory_bandwidth_bytes_per_s
    assert host.memory_bandwidth_bytes_per_s
    share = (row.mode.layers - row.mode.gpu_layers) / (row.mode.layers - 1)
    assert share == 0.25
    host_s = BESIDE_A_CARD * share * row.weight_bytes / host.memory_bandwidth_bytes_per_s
    bound_s = host_s + (1 - share) * row.weight_bytes / card.memory_bandwidth_bytes_per_s
    token_s = (row.alone_latency_s - row.alone_ttft_s) / 31
    assert bound_s < 1.1 * token_s < 1.5 * bound_s
    words = shlex.split(row.launch)
    assert words[words.index("--n-gpu-layers") + 1] == str(row.mode.gpu_layers)
    assert "--no-mmap" in words
    assert row.to_dict()["mode"]["host"] == "ryzen-5950x"


def test_settings_that_do_not_go_together():
    with pytest.raises(InputError, match="keeps all layers"):
        serve_plan("gpt2", on="l4", rate="1/s", gpu_layers="3")
    with pytest.raises(InputError, match="goes with --gpu-layers"):
        serve_plan("gpt2", on="l4", host="ryzen-5950x", **LOCAL)
    with pytest.raises(InputError, match="needs devices"):
        serve_plan("gpt2", gpu_layers="auto", **LOCAL)
    with pytest.raises(InputError, match="no processor"):
        serve_plan("gpt2", on="l4", gpu_layers="auto", host="rtx-4090", **LOCAL)
    with pytest.raises(InputError, match="together"):
        serve_plan("gpt2", on="l4", gpu_layers="auto", draft="ngram", **LOCAL)
    for device in ("ryzen-5950x", "apple-m4-max", "rtx-4090:2"):
        with pytest.raises(UnsupportedError, match=r"nothing to split|several cards[^\n]*\n  try: one card \(--on rtx-4090\)$"):
            serve_plan("gpt2", on=device, gpu_layers="auto", **LOCAL)
    with pytest.raises(UnsupportedError, match=r"12 layers and its head\n  try: --gpu-layers 13"):
        serve_plan("gpt2", on="l4", gpu_layers="14", **LOCAL)
