"""Heads of attention among devices: against the rules of an engine, written down apart."""

from __future__ import annotations

import pytest

from gpuwise.serving.attention_layers import AttentionLayers, sharing_heads


def layers(heads: int, key_heads: int, *, head_size: int = 64) -> AttentionLayers:
    return AttentionLayers(
        layers=2,
        heads=heads,
        head_size=head_size,
        query_bytes=4 * heads * head_size,
        key_bytes=4 * key_heads * head_size,
        window=None,
        dtype="bfloat16",
    )


def vllm_runs(heads: int, key_heads: int, devices: int) -> bool:
    """What vLLM asserts of a model's heads and --tensor-parallel-size."""
    if heads % devices:
        return False
    return devices % key_heads == 0 if key_heads < devices else key_heads % devices == 0


@pytest.mark.parametrize(
    ("heads", "key_heads"), [(12, 12), (32, 8), (64, 8), (28, 4), (40, 10), (24, 6), (25, 25), (14, 2), (128, 1)]
)
def test_devices_share_heads_as_an_engine_does(heads: int, key_heads: int) -> None:
    for devices in (1, 2, 3, 4, 5, 6, 8, 16):
        most = sharing_heads([layers(heads, key_heads)], devices)
        assert most == max(n for n in range(1, devices + 1) if vllm_runs(heads, key_heads, n))


def test_the_part_of_a_device_has_its_heads() -> None:
    part = layers(32, 8).shared(16)
    assert (part.heads, part.key_heads) == (2, 1)
    assert (part.query_bytes, part.key_bytes) == (layers(2, 1).query_bytes, layers(2, 1).key_bytes)


def test_all_layers_share() -> None:
    assert sharing_heads([layers(32, 8), layers(12, 12)], 8) == 4


def test_keys_of_another_width_than_values_are_not_counted() -> None:
    latent = AttentionLayers(2, 64, 192, 4 * 64 * 192, 2 * 576, None, "bfloat16")
    assert latent.key_heads == 1
    assert sharing_heads([latent], 8) == 8
    widened = AttentionLayers(2, 16, 192, 4 * 16 * 192, 2 * 16 * (192 + 128), None, "bfloat16")  # 16 heads seem to be 13
    assert sharing_heads([widened], 8) == 8
