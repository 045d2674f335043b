"""Drafts that are a part of the model: one more layer that predicts the next token from the model's own states.

MTP (DeepSeek-V3 technical report, arXiv:2412.19437, section 2.2): a layer like the model's last one, after a product that joins
its input with the embedding of the last token; embedding and head are the model's. The one layer that models are published
with runs once for each drafted token, as vLLM does (vllm/v1/spec_decode/eagle.py).

EAGLE-3 (arXiv:2503.01840): a layer as wide as the model's, after a product that joins three of its states. Attention also reads
the embedding, so its first products are twice as deep. The head is its own, over the 32,000 tokens that occur most.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from gpuwise.errors import JobError
from gpuwise.serving.formats import Format, StoredWeights, stored
from gpuwise.serving.generation import Generation
from gpuwise.serving.parts import part_at
from gpuwise.serving.sharing import GROUPED
from gpuwise.serving.weights import EMBEDDING, HEAD, OTHER, PRODUCT, Weights
from gpuwise.trace.family import TraceFamily
from gpuwise.trace.tables import COLUMNS, KINDS, Operations, OperationSequence

OwnKind = Literal["mtp", "eagle3"]
EAGLE_VOCABULARY = 32_000  # draft_vocab_size of yuhuili/EAGLE3-LLaMA3.1-Instruct-8B and of AngelSlim's for Qwen3
STATES = {"mtp": 2, "eagle3": 3}  # rows that are joined: the state and the embedding; three states
NORMS = {"mtp": 3, "eagle3": 2}  # beside those of the layer: of both inputs and the result; of states and result
_OTHER_DRAFTS = ["--draft MODEL: a smaller one that writes the same tokens", "--draft ngram --acceptance 0.3"]
_AT = {name: COLUMNS.index(name) for name in COLUMNS}
_GEMM = KINDS.index("gemm")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_ATTENTION = re.compile(r"attn|attention")


@dataclass(frozen=True)
class OwnDraft:
    """A draft that is a part of the model.

    Attributes:
        generation: how it runs; its weights are those of the draft alone.
        width: elements of a token between the model's layers.
    """

    generation: Generation
    width: int

    def priced(self) -> Generation:
        """The draft for EngineStep, which learns the width of a token from an embedding."""
        embedding = Weights("embedding", (0, self.width), 1, 2, EMBEDDING)
        return replace(self.generation, weights=(*self.generation.weights, embedding))

    def stored(self, format: Format | None) -> StoredWeights:
        """Its weights in a format; None: as recorded."""
        return stored(self.generation, format)


def own_draft(model: Generation, kind: OwnKind, *, devices: int = 1) -> OwnDraft:
    """The draft of a recorded model.

    devices: that share each layer; the recording is of the first of them.

    Raises UnsupportedError where the model's last layer is not seen, or, of EAGLE-3, is a mixture of experts: the draft's layer
    is dense, and as wide as its maker likes.
    """
    block = _last_block(model)
    layer, weights = part_at(model.tokens, _inside(model.tokens, block)), _weights_in(model, block)
    if kind == "eagle3" and any(each.of_experts for each in weights):
        raise JobError("the layer of an EAGLE-3 draft of a mixture of experts does not follow from the model.", _OTHER_DRAFTS)
    attention = replace(next((each for each in model.attention if each.window is None), model.attention[-1]), layers=1)
    width, element_bytes = model.width, max(each.element_bytes for each in model.weights if each.role == PRODUCT)
    joining = (width, STATES[kind] * width)
    products = [joining]
    weights.append(Weights("joining", joining, 1, element_bytes, PRODUCT))
    weights.append(Weights("norms", (width,), NORMS[kind], element_bytes, OTHER))
    head = model.head
    if kind == "eagle3":
        columns = _first_of_attention(layer)
        products.append((columns, width))
        weights.append(Weights("attention of embeddings", (columns, width), 1, element_bytes, PRODUCT))
        vocabulary = min(model.vocabulary, -(-EAGLE_VOCABULARY // devices))
        weights.append(Weights("head", (vocabulary, width), 1, element_bytes, HEAD))
        head = _narrowed(head, vocabulary)
    draft = replace(
        model,
        tokens=_with_products(layer, products),
        head=head,
        attention=(attention,),
        weights=tuple(weights),
        cache_bytes_per_token=attention.key_bytes,
        cache_bytes_per_sequence=0,
    )
    return OwnDraft(draft, width)


def _last_block(model: Generation) -> str:
    blocks = model.tokens.header.blocks
    if not blocks or not model.attention or not model.width:
        raise JobError("the model's last layer is not seen in its recording.", _OTHER_DRAFTS)
    return blocks[-1]


def _inside(family: TraceFamily, block: str) -> np.ndarray:
    """Which positions run in a block. Shape (positions,)."""
    inside = np.array([path == block or path.startswith(f"{block}.") for path in family.modules], dtype=bool)
    return inside[family.sequence.module]


def _weights_in(model: Generation, block: str) -> list[Weights]:
    """The weights of one block: those of modules that run in it, as many as each of the blocks has that run such a module."""
    modules, blocks = model.tokens.modules, model.tokens.header.blocks
    running = {_NUMBER.sub("*", path) for path in modules if path == block or path.startswith(f"{block}.")}
    inside = []
    for each in model.weights:
        owner = each.name.rpartition(".")[0]
        if owner in running:
            having = sum(_has(modules, one, owner) for one in blocks)
            inside.append(replace(each, count=each.count // having))
    return inside


def _has(modules: tuple[str, ...], block: str, owner: str) -> bool:
    return any(_NUMBER.sub("*", path) == owner for path in modules if path.startswith(f"{block}."))


def _first_of_attention(layer: TraceFamily) -> int:
    """Columns of the products that read a layer's input for its attention: all of attention's but the last one."""
    trace, modules = layer.at(micro_batch=1, new_tokens=1), layer.modules
    columns = [
        int(trace.operations.column("n")[operation])
        for operation, module in zip(trace.sequence.operation.tolist(), trace.sequence.module.tolist(), strict=True)
        if trace.operations.kind[operation] == _GEMM and _ATTENTION.search(modules[module])
    ]
    if len(columns) < 2:
        raise JobError("the products of the model's attention are not seen in its recording.", _OTHER_DRAFTS)
    return sum(columns[:-1])


def _with_products(layer: TraceFamily, products: list[tuple[int, int]]) -> TraceFamily:
    """A layer and, after it, products of each token with matrices of these columns and rows."""
    source, at_one = layer.operations, layer.at(micro_batch=1, new_tokens=1)
    of_tokens = (source.kind == _GEMM) & (at_one.operations.column("batch") <= 1)
    of_tokens &= np.array([GROUPED not in name for name in source.name])
    plain = [row for row in layer.sequence.operation.tolist() if of_tokens[row]]
    template = plain[-1]
    added = [_product(source, at_one.operations, template, n, k) for n, k in products]
    rows = source.take(np.full(len(added), template))
    operations = source.followed_by(replace(rows, values=np.array(added)))
    last = len(layer.sequence) - 1
    columns = {
        name: np.concatenate([column, np.repeat(column[last:], len(added))]) for name, column in vars(layer.sequence).items()
    }
    columns["operation"][-len(added) :] = len(source) + np.arange(len(added))
    return replace(layer, operations=operations, sequence=OperationSequence(**columns))


def _product(source: Operations, at_one: Operations, row: int, n: int, k: int) -> np.ndarray:
    """The terms of a product like that of a row, with other columns and rows. Shape (columns, terms)."""
    values, numbers = source.values[row].copy(), at_one.values[row]
    n0, m0 = (int(numbers[_AT[name]]) for name in ("n", "m"))
    one, tokens = values[_AT["n"]] // n0, values[_AT["m"]]
    element_bytes = int(numbers[_AT["bytes_written"]]) // (m0 * n0)
    values[_AT["n"]], values[_AT["k"]] = n * one, k * one
    values[_AT["flops"]] = 2 * n * k * tokens
    values[_AT["bytes_read"]] = element_bytes * (k * tokens + n * k * one)
    values[_AT["bytes_written"]] = element_bytes * n * tokens
    return values


def _narrowed(head: TraceFamily, vocabulary: int) -> TraceFamily:
    """The head with fewer columns."""
    at_one, values = head.at(micro_batch=1, new_tokens=1).operations, head.operations.values.copy()
    widest = max(set(head.sequence.operation.tolist()), key=lambda row: at_one.column("n")[row])
    k = int(at_one.column("k")[widest])
    values[widest] = _product(head.operations, at_one, widest, vocabulary, k)
    return replace(head, operations=replace(head.operations, values=values))
