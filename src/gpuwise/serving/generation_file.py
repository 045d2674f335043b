"""Generations on disk: both families in one archive, with the rest of a Generation in its header. Validated on load."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict

import numpy as np

from gpuwise.errors import FileFormatError
from gpuwise.plain_files import LARGEST_WHOLE
from gpuwise.serving.attention_layers import AttentionLayers
from gpuwise.serving.chosen_keys import ChosenKeys, Indexer
from gpuwise.serving.generation import Generation
from gpuwise.serving.sharing import ALONE
from gpuwise.serving.weights import EMBEDDING, HEAD, OTHER, PRODUCT, Weights
from gpuwise.trace import TraceFamily
from gpuwise.trace.archive import ArchiveHeader, read_archive, write_archive
from gpuwise.trace.files import checked, packed, unpacked

FORMAT = "gpuwise-generation"
VERSION = 1
_FAMILIES = ("tokens", "head")
_ROLES = (EMBEDDING, HEAD, PRODUCT, OTHER)


def save_generation(generation: Generation, path: str | os.PathLike[str]) -> None:
    """Writes how a model generates, recorded whole: that of devices which share it follows from it.

    The file is complete or absent. Raises FileFormatError on failure.
    """
    assert generation.degrees == ALONE
    header: dict[str, object] = {
        "format": FORMAT,
        "version": VERSION,
        "attention": [asdict(layers) for layers in generation.attention],
        "weights": [asdict(each) for each in generation.weights],
        "longest": generation.longest,
        "cache_bytes_per_token": generation.cache_bytes_per_token,
        "cache_bytes_per_sequence": generation.cache_bytes_per_sequence,
        "activation_bytes_per_token": generation.activation_bytes_per_token,
    }
    arrays: dict[str, np.ndarray] = {}
    for name in _FAMILIES:
        header[name], columns = packed(getattr(generation, name))
        arrays |= {f"{name}-{column}": array for column, array in columns.items()}
    write_archive(path, header, arrays)


def load_generation(path: str | os.PathLike[str]) -> Generation:
    """Reads how a model generates. Raises FileFormatError if the file is truncated, foreign, newer or inconsistent."""
    header, arrays = read_archive(path, format=FORMAT, versions=(VERSION,), what="recorded generation")
    return checked(path, lambda: _from_parts(header, arrays))


def _from_parts(header: ArchiveHeader, arrays: Mapping[str, np.ndarray]) -> Generation:
    tokens, head = (_family(name, header, arrays) for name in _FAMILIES)
    longest = header["longest"]
    return Generation(
        tokens=tokens,
        head=head,
        attention=tuple(map(_attention, header["attention"])),
        weights=tuple(map(_weights, header["weights"])),
        longest=None if longest is None else _count(longest, least=1),
        cache_bytes_per_token=_count(header["cache_bytes_per_token"]),
        cache_bytes_per_sequence=_count(header["cache_bytes_per_sequence"]),
        activation_bytes_per_token=_count(header["activation_bytes_per_token"]),
    )


def _family(name: str, header: ArchiveHeader, arrays: Mapping[str, np.ndarray]) -> TraceFamily:
    prefix = f"{name}-"
    family = unpacked(
        header[name], {column.removeprefix(prefix): array for column, array in arrays.items() if column.startswith(prefix)}
    )
    if not isinstance(family, TraceFamily) or not {"micro_batch", "new_tokens"} <= family.header.sizes.keys():
        raise FileFormatError(f"the recording is damaged: its {name} are no family of new tokens.")
    return family


def _attention(row: ArchiveHeader) -> AttentionLayers:
    window, dtype, chosen = row["window"], row["dtype"], row["chosen"]
    counts = {name: _count(row[name], least=1) for name in ("layers", "heads", "head_size", "query_bytes", "key_bytes")}
    return AttentionLayers(
        **counts,
        window=None if window is None else _count(window, least=1),
        dtype=_text(dtype),
        chosen=None if chosen is None else _chosen(chosen),
    )


def _chosen(row: ArchiveHeader) -> ChosenKeys:
    indexer = row["indexer"]
    scores = None if indexer is None else Indexer(_count(indexer["heads"], least=1), _count(indexer["size"], least=1))
    return ChosenKeys(_count(row["most"], least=1), scores)


def _weights(row: ArchiveHeader) -> Weights:
    if row["role"] not in _ROLES or not isinstance(row["tied"], bool):
        raise FileFormatError("the recording is damaged: the role of a weight makes no sense.")
    return Weights(
        name=_text(row["name"]),
        shape=tuple(map(_count, row["shape"])),
        count=_count(row["count"]),
        element_bytes=_count(row["element_bytes"]),
        role=row["role"],
        tied=row["tied"],
    )


def _count(value: object, *, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= LARGEST_WHOLE:
        raise FileFormatError("the recording is damaged: a count is no whole number, or out of range.")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise FileFormatError("the recording is damaged: a name is no text.")
    return value
