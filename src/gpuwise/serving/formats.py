"""Formats: in which numbers an engine keeps the weights of a model, their bytes, and what products then compute in."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import ceil

from gpuwise.errors import unknown_name
from gpuwise.serving import ggml
from gpuwise.serving.generation import Generation
from gpuwise.serving.weights import EMBEDDING, HEAD, PRODUCT, Weights

GGUF = "gguf-"  # prefix of the mixes of GGUF files: gguf-q4_k_m
_PER_ROW = -1  # a scale for each row


@dataclass(frozen=True)
class Format:
    """A number format of weights.

    Attributes:
        name: name on the command line.
        arithmetic: type that products compute in; "" for the type of the activations.
        quality: what the format may cost, in words.
        engines: names of the engines that read it.
        source: where its figures come from.
        bits, group, scale_bits: see data/formats.toml; 0 for a mix of GGUF.
        mix: of GGUF; "" for others.
        reading_arithmetic: type that products of many tokens compute in, where the device multiplies it; "" for arithmetic.
    """

    name: str
    arithmetic: str
    quality: str
    engines: tuple[str, ...]
    source: str
    bits: float = 0.0
    group: int = 0
    scale_bits: float = 0.0
    mix: str = ""
    reading_arithmetic: str = ""


@dataclass(frozen=True)
class CacheFormat:
    """A number format of keys and values.

    Attributes:
        name: name on the command line.
        element_bytes: bytes of an element, scales included.
        engines: names of the engines that have it.
        quality: what the format may cost, in words.
    """

    name: str
    element_bytes: float
    engines: tuple[str, ...]
    quality: str


CACHE_FORMATS = {
    each.name: each
    for each in (
        # https://docs.vllm.ai/en/stable/features/quantization/quantized_kvcache/
        CacheFormat(
            "fp8", 1.0, ("vllm", "tensorrt-llm", "sglang"), "little with calibrated scales; more in long contexts without"
        ),
        # --cache-type-k q8_0 --cache-type-v q8_0: blocks of 32 with an fp16 scale
        CacheFormat("q8_0", 34 / 32, ("llama.cpp",), "next to nothing"),
    )
}


@dataclass(frozen=True)
class StoredWeights:
    """The weights of a model in a format.

    Attributes:
        bytes: of all of them.
        product_bytes, head_bytes: bytes of an element of the matrices that tokens are multiplied with, and of the head; 0 as
            recorded.
        arithmetic, reading_arithmetic: see Format; the head computes in the type of the activations.
    """

    bytes: int
    product_bytes: float = 0.0
    head_bytes: float = 0.0
    arithmetic: str = ""
    reading_arithmetic: str = ""


def stored(
    generation: Generation, format: Format | None, *, only: Callable[[Weights], bool] = lambda weights: True
) -> StoredWeights:
    """The weights of a recorded model in a format, or those of them that `only` chooses; None: as recorded."""
    sizes = [(each, size) for each, size in _sizes(generation, format) if only(each)]
    if format is None:
        return StoredWeights(sum(size for _, size in sizes))
    heads = [(each, size) for each, size in sizes if each.role == HEAD or each.tied]
    products = [(each, size) for each, size in sizes if each.role == PRODUCT]
    return StoredWeights(
        bytes=sum(size for _, size in sizes),
        product_bytes=_mean(products),
        head_bytes=_mean(heads or products),
        arithmetic=format.arithmetic,
        reading_arithmetic=format.reading_arithmetic,
    )


def stored_parts(generation: Generation, format: Format | None) -> tuple[int, int, int]:
    """Bytes of the embeddings, of the head, and of all else in a format; None: as recorded. A head that shares its matrix with
    the embedding counts in both."""
    sizes = _sizes(generation, format)
    embedding, head = (sum(size for each, size in sizes if each.role == role) for role in (EMBEDDING, HEAD))
    rest = sum(size for _, size in sizes) - embedding - head
    return embedding, head + sum(size for each, size in sizes if each.tied and each.role != HEAD), rest


def expert_bytes(generation: Generation, format: Format | None, *, layers: int) -> tuple[int, ...]:
    """Bytes of the experts of each of the layers that have some, in a format; None: as recorded.

    layers: how many have some.
    """
    model = _model_shape(generation)
    sizes = [0] * layers
    for each in generation.weights:
        if each.of_experts:
            for number, size in enumerate(_bytes_in_order(each, format, model)):
                sizes[number * layers // each.count] += size
    return tuple(sizes)


def _sizes(generation: Generation, format: Format | None) -> list[tuple[Weights, int]]:
    """Each of the weights with its bytes."""
    model = _model_shape(generation)
    return [(each, sum(_bytes_in_order(each, format, model))) for each in generation.weights]


def _model_shape(generation: Generation) -> ggml.ModelShape:
    return ggml.ModelShape.of(generation.weights, layers=sum(each.layers for each in generation.attention))


def _mean(sizes: Sequence[tuple[Weights, int]]) -> float:
    """Bytes of an element; 0 without any."""
    elements = sum(each.count * each.elements for each, _ in sizes)
    return sum(size for _, size in sizes) / elements if elements else 0.0


def _bytes_in_order(weights: Weights, format: Format | None, model: ggml.ModelShape) -> list[int]:
    """Bytes of each of equal weights, in the order of their blocks."""
    if format is not None and format.mix:
        return [ggml.tensor_bytes(kind, weights.elements) for kind in ggml.types_of(weights, format.mix, model)]
    if format is None or weights.role != PRODUCT:
        return [weights.elements * weights.element_bytes] * weights.count
    columns = weights.shape[-1]
    rows = weights.elements // columns
    scales = {0: 1.0, _PER_ROW: float(rows)}.get(format.group, 0.0) or _scales(rows, columns, format.group)
    return [ceil((weights.elements * format.bits + scales * format.scale_bits) / 8)] * weights.count


def _scales(rows: int, columns: int, group: int) -> float:
    """Groups along the columns, the last one of each row maybe not full; blocks of 128 by 128 are groups of their area."""
    return float(rows * columns / group) if group > columns else float(rows * ceil(columns / group))


@cache
def formats() -> dict[str, Format]:
    """The formats by name."""
    table = tomllib.loads(files("gpuwise.serving").joinpath("data", "formats.toml").read_text(encoding="utf-8"))
    named = {
        name: Format(
            name=name,
            arithmetic=row["arithmetic"],
            quality=row["quality"],
            engines=tuple(row["engines"]),
            source=row["source"],
            bits=float(row["bits"]),
            group=row["group"],
            scale_bits=float(row["scale_bits"]),
        )
        for name, row in table["format"].items()
    }
    for mix in ggml.MIXES:
        quality = next(words for prefix, words in table["gguf_quality"].items() if mix.startswith(prefix))
        reading = "" if mix in ggml.WIDE else "int8"  # llama.cpp rounds activations to 8 bits, too (ggml-cuda/mmq.cu)
        named[GGUF + mix] = Format(
            GGUF + mix,
            "",
            quality,
            ("llama.cpp", "llamafile"),
            "llama.cpp, src/llama-quant.cpp",
            mix=mix,
            reading_arithmetic=reading,
        )
    return named


def cache_format_of(name: str) -> CacheFormat:
    """The format of keys and values of that name; UnknownNameError where there is none."""
    if name not in CACHE_FORMATS:
        raise unknown_name("format of the cache", name, list(CACHE_FORMATS), listing="gpuwise serve-plan --help")
    return CACHE_FORMATS[name]


def format_of(name: str) -> Format:
    """The format of that name; UnknownNameError where there is none."""
    if name not in formats():
        raise unknown_name("format of weights", name, list(formats()), listing="gpuwise serve-plan --help")
    return formats()[name]
