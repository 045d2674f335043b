"""The tensor-parallel plan of a model: its job's, its config's, or derived from an observed forward pass.

Derived: a group of linear layers that alone feed another one (queries, keys and values; gate and up) is split by columns and
the other by rows, so that each rank computes some heads or some hidden features and one sum follows. Where what lies between
them does not allow that (dropout, queries, keys and values in one layer), the group's output is gathered instead: weights
are split all the same, and every rank computes what lies between.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from gpuwise.errors import InputError, UnsupportedError
from gpuwise.job.parallel import (
    COLWISE,
    COLWISE_GATHERED,
    EMBEDDING,
    REPLICATED_SUMMED,
    ROWWISE,
    ROWWISE_SPLIT,
    PlanRemark,
    TensorPlan,
    features,
)
from gpuwise.runtime.parallel.forward_pass import AttentionCall, ForwardPass


@dataclass(frozen=True)
class Pair:
    """Linear layers that alone feed another one.

    Attributes:
        columns: paths of the layers to split by columns.
        row: path of the layer that they feed.
        attention: the attention between them; None for a perceptron.
        between: paths of modules with parameters that are called between them.
        random: whether random numbers are drawn between them.
    """

    columns: tuple[str, ...]
    row: str
    attention: AttentionCall | None
    between: tuple[str, ...]
    random: bool

    @property
    def fused(self) -> bool:
        """Whether one layer makes queries, keys and values."""
        return self.attention is not None and len(self.columns) < len(self.attention.feeders)


def derived_plan(
    model: nn.Module,
    events: ForwardPass,
    degree: int,
    *,
    by_heads: bool = True,
    by_hidden: bool = True,
    vocabulary: bool = True,
) -> TensorPlan:
    """The plan that follows from an observed forward pass.

    Arguments:
        model: the model.
        events: its forward pass.
        degree: tensor-parallel ranks.
        by_heads: whether attention may be split by heads; False gathers every group that attention follows.
        by_hidden: whether perceptrons may be split by hidden features; False gathers their outputs.
        vocabulary: whether the embedding of the vocabulary, and the layer that predicts from it, may be split.

    Raises InputError where heads do not divide, or no layer does, UnsupportedError where the model has nothing to split.
    """
    words: dict[str, str] = {}
    remarks: list[PlanRemark] = []
    undivided: list[tuple[str, int]] = []  # layers and their features
    table, head = _vocabulary(model, events)
    for pair in linear_pairs(events):
        if pair.row == head:
            continue
        sizes = [features(model.get_submodule(path))[1] for path in pair.columns]
        if odd := [size for size in (*sizes, features(model.get_submodule(pair.row))[0]) if size % degree]:
            undivided.append((pair.columns[0], odd[0]))
            remarks.append(
                PlanRemark((*pair.columns, pair.row), f"whole, {degree} devices do not divide its {sizes[0]:,} outputs")
            )
            continue
        why = _reason_to_gather(model, pair, by_heads=by_heads, by_hidden=by_hidden)
        if why is None:
            check_heads(sizes, pair, degree)
        words |= dict.fromkeys(pair.columns, COLWISE if why is None else COLWISE_GATHERED)
        words[pair.row] = ROWWISE if why is None else ROWWISE_SPLIT
        if why is None:
            words |= dict.fromkeys(pair.between, REPLICATED_SUMMED)
        else:
            remarks.append(PlanRemark(pair.columns, f"gathered, {why}"))
    words |= _split_vocabulary(model, table, head, degree, remarks) if vocabulary else {}
    if not words and undivided:
        path, size = undivided[0]
        raise InputError(
            f"tensor parallelism over {degree} devices divides no layer of {type(model).__name__}; {path!r} has {size:,} "
            "features.",
            [f"--mesh tp={next(n for n in range(degree, 0, -1) if size % n == 0)}", "--mesh dp_shard=N"],
        )
    if not words:
        raise UnsupportedError(
            f"{type(model).__name__} has no linear layers that tensor parallelism could split over {degree} devices.",
            ["--mesh dp_shard=N", "say in the Job's tensor_parallel_plan which modules to split"],
        )
    return TensorPlan(words, "derived from a forward pass", remarks=tuple(remarks))


def linear_pairs(events: ForwardPass) -> Iterator[Pair]:
    """Pairs of linear layers, each called once, in the order of the forward pass."""
    calls = {call.path: call for call in events.linears}
    counts = {path: sum(call.path == path for call in events.linears) for path in calls}
    fed: dict[str, set[str]] = {path: set() for path in calls}
    for call in events.linears:
        for path in call.feeders:
            fed[path].add(call.path)
    taken: set[str] = set()
    for call in events.linears:
        columns = tuple(path for path in calls if path in call.feeders)
        members = {*columns, call.path}
        if not columns or members & taken or any(counts[path] > 1 for path in members):
            continue
        if any(fed[path] != {call.path} for path in columns):
            continue
        first = min(calls[path].position for path in columns)
        attention = next((a for a in events.attention if first < a.position < call.position), None)
        between = tuple(dict.fromkeys(c.path for c in events.others if first < c.position < call.position))
        yield Pair(columns, call.path, attention, between, events.random_between(first, call.position))
        taken |= members


def _reason_to_gather(model: nn.Module, pair: Pair, *, by_heads: bool, by_hidden: bool) -> str | None:
    """Why what lies between a pair cannot be computed in parts; None where it can."""
    if pair.random:
        return "random numbers (dropout) are drawn between them, and would differ from one device's"
    inputs = features(model.get_submodule(pair.row))[0]
    if pair.attention is None and any(features(model.get_submodule(path))[1] != inputs for path in pair.columns):
        return "the next layer takes another width, so one layer makes several things"
    if pair.fused:
        return "one layer makes queries, keys and values"
    if pair.attention is not None:
        if not by_heads:
            return "the model's attention did not compute the same by heads"
        width = pair.attention.head_dim
        if all(p.numel() == width for path in pair.between for p in model.get_submodule(path).parameters()):
            return None
    elif not by_hidden:
        return "the model's perceptron did not compute the same by hidden features"
    return "a module with parameters of the whole width lies between them" if pair.between else None


def check_heads(sizes: list[int], pair: Pair, degree: int) -> None:
    """Raises InputError where tensor-parallel ranks do not divide the heads of queries, keys or values.

    Arguments:
        sizes: output features of the pair's columns.
    """
    attention = pair.attention
    if attention is None:
        return
    for path, size in zip(pair.columns, sizes, strict=True):
        heads = size // attention.head_dim
        if size % attention.head_dim == 0 and heads % degree:
            most = next(n for n in range(degree, 0, -1) if heads % n == 0)
            raise InputError(
                f"tensor parallelism over {degree} devices does not divide the {heads} heads of {path!r}.",
                [f"--mesh tp={most}", f'"{path}": "{COLWISE_GATHERED}" and the like in the Job\'s tensor_parallel_plan'],
            )


def _vocabulary(model: nn.Module, events: ForwardPass) -> tuple[str, str]:
    """Paths of the embedding of the vocabulary and of the linear layer that predicts from it; "" where there is none."""
    modules = dict(model.named_modules())
    tables = {c.path: table for c in events.others if isinstance(table := modules[c.path], nn.Embedding)}
    head = events.linears[-1].path if events.linears else ""
    if not tables:
        return "", ""
    outputs = features(modules[head])[1] if head else 0
    rows_of = {path: table.num_embeddings for path, table in tables.items()}
    path = next((p for p, rows in rows_of.items() if rows == outputs), max(tables, key=lambda p: tables[p].weight.numel()))
    return path, head if rows_of[path] == outputs else ""


def _split_vocabulary(model: nn.Module, table_path: str, head: str, degree: int, remarks: list[PlanRemark]) -> dict[str, str]:
    """The embedding of the vocabulary split by rows, and the layer that predicts from it by columns."""
    if not table_path:
        return {}
    table = model.get_submodule(table_path)
    assert isinstance(table, nn.Embedding)
    rows = table.num_embeddings
    if rows % degree:
        paths = (table_path, head) if head else (table_path,)
        remarks.append(PlanRemark(paths, f"whole, {degree} devices do not divide {rows:,} rows"))
        return {}
    if table.padding_idx is None and table.max_norm is None and not table.sparse and not table.scale_grad_by_freq:
        return {table_path: EMBEDDING} | ({head: COLWISE_GATHERED} if head else {})
    remarks.append(PlanRemark((table_path,), "whole, it has padding_idx, max_norm, sparse or scale_grad_by_freq"))
    tied = head and model.get_submodule(head).weight is table.weight
    return {head: COLWISE_GATHERED} if head and not tied else {}
