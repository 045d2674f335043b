"""Recorded generations on disk: nothing is lost, and damage is noticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuwise.errors import FileFormatError
from gpuwise.serving.chosen_keys import ChosenKeys, Indexer
from gpuwise.serving.generation import Generation
from gpuwise.serving.generation_file import FORMAT, load_generation, save_generation
from gpuwise.serving.preset_generations import load_preset_generation
from gpuwise.serving.sharing import Degrees
from gpuwise.trace import TraceFamily
from gpuwise.trace.archive import read_archive, write_archive
from gpuwise.trace.presets import DATA


def shipped() -> Generation:
    result = load_preset_generation("gpt2", target="accelerator", precision="bf16")
    assert result is not None
    return result


def assert_same_family(a: TraceFamily, b: TraceFamily) -> None:
    assert (a.header, a.axes, a.modules) == (b.header, b.axes, b.modules)
    assert (a.operations.name, a.operations.dtype) == (b.operations.name, b.operations.dtype)
    for table in ("operations", "sequence", "storages"):
        columns = [vars(getattr(family, table)) for family in (a, b)]
        arrays = {name for name, column in columns[0].items() if isinstance(column, np.ndarray)}
        assert all(np.array_equal(columns[0][name], columns[1][name]) for name in arrays)


def assert_same(a: Generation, b: Generation) -> None:
    assert_same_family(a.tokens, b.tokens)
    assert_same_family(a.head, b.head)
    plain = [field.name for field in fields(Generation) if field.compare and field.name not in ("tokens", "head")]
    assert [getattr(a, name) for name in plain] == [getattr(b, name) for name in plain]


@pytest.mark.parametrize(
    "change",
    [
        lambda generation: generation,
        lambda generation: replace(generation, longest=None, cache_bytes_per_sequence=12_345),
        lambda generation: replace(generation, attention=tuple(replace(layers, window=128) for layers in generation.attention)),
        lambda generation: replace(
            generation,
            attention=(
                replace(generation.attention[0], chosen=ChosenKeys(2048, Indexer(64, 128))),
                replace(generation.attention[0], chosen=ChosenKeys(2048, None)),
            ),
        ),
        lambda generation: replace(generation, attention=()),
    ],
    ids=["gpt2", "a state", "windows", "chosen keys", "no attention"],
)
def test_what_is_saved_is_loaded(change: Callable[[Generation], Generation], tmp_path: Path):
    generation = change(shipped())
    save_generation(generation, tmp_path / "a.npz")
    assert_same(load_generation(tmp_path / "a.npz"), generation)
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_a_shared_model_is_not_saved(tmp_path: Path):
    with pytest.raises(AssertionError):
        save_generation(shipped().shared(Degrees(tp=2)), tmp_path / "a.npz")


def test_damage_is_noticed(tmp_path: Path):
    path = tmp_path / "a.npz"
    save_generation(shipped(), path)
    content = path.read_bytes()
    for damaged in (b"", content[: len(content) // 2], content[:100] + b"\xff" + content[101:]):
        path.write_bytes(damaged)
        with pytest.raises(FileFormatError, match="is not a gpuwise recorded generation, or is damaged"):
            load_generation(path)
    with pytest.raises(FileFormatError, match="is not a gpuwise recorded generation"):
        load_generation(DATA / "gpt2" / "infer-bf16-none.npz")
    with pytest.raises(FileFormatError, match="there is no recorded generation file"):
        load_generation(tmp_path / "b.npz")


@pytest.mark.parametrize(
    "damage",
    [
        lambda header: header.pop("weights"),
        lambda header: header.update(cache_bytes_per_token=-1),
        lambda header: header.update(activation_bytes_per_token=1.5),
        lambda header: header.update(longest=0),
        lambda header: header.update(longest=True),
        lambda header: header.update(version=99),
        lambda header: header.update(head=header["tokens"] | {"axes": None}),
        lambda header: header["attention"][0].update(layers=0),
        lambda header: header["attention"][0].update(dtype=3),
        lambda header: header["attention"][0].update(chosen={"most": 0, "indexer": None}),
        lambda header: header["weights"][0].update(role="anything"),
        lambda header: header["weights"][0].update(tied="yes"),
        lambda header: header["weights"][0].update(shape=[-3]),
        lambda header: header["tokens"].update(names=[1]),
    ],
)
def test_numbers_that_make_no_sense_are_noticed(damage: Callable[[dict[str, Any]], object], tmp_path: Path):
    path = tmp_path / "a.npz"
    save_generation(shipped(), path)
    header, arrays = read_archive(path, format=FORMAT, versions=(1,), what="recorded generation")
    damage(header)
    write_archive(path, header, arrays)
    with pytest.raises(FileFormatError, match=str(path)):
        load_generation(path)
