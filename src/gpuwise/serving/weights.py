"""Weights: the parameters of a recorded model by what they do, from which the bytes of a number format follow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

EMBEDDING, HEAD, PRODUCT, OTHER = "embedding", "head", "product", "other"


@dataclass(frozen=True)
class Weights:
    """Equal parameters, one in each of the model's blocks, or a single one.

    Attributes:
        name: path of the parameter, with * instead of the numbers of blocks and experts.
        shape: of one of them, as this device has it.
        count: how many there are, one after the other in the order of their blocks.
        element_bytes: of an element, as recorded.
        role: EMBEDDING: rows that tokens choose. HEAD: the product that makes logits, also where it shares the embedding's
            parameter. PRODUCT: any other matrix that tokens are multiplied with. OTHER: norms, biases, routers, buffers, parts
            for images.
        tied: whether the head shares the embedding's parameter.
    """

    name: str
    shape: tuple[int, ...]
    count: int
    element_bytes: int
    role: str
    tied: bool = False

    @property
    def elements(self) -> int:
        """Elements of one of them."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of all of them, as recorded."""
        return self.count * self.elements * self.element_bytes

    @property
    def of_experts(self) -> bool:
        """Whether they belong to experts of which a router chooses some, by their name."""
        return "experts." in self.name and "shared" not in self.name

    def shared_by(self, devices: int) -> Weights:
        """The part of one of several devices that share them without remainder."""
        rows, *columns = self.shape or (1,)
        return replace(self, shape=(max(1, rows // devices), *columns))


def all_blocks(short: tuple[Weights, ...], long: tuple[Weights, ...], *, more: int) -> tuple[Weights, ...]:
    """The weights of a model of whose blocks two recordings have few, the second one block more.

    Arguments:
        more: blocks of the model beyond those of `short`.
    """
    grown = {(each.name, each.shape): each for each in long}
    results = []
    for each in short:
        step = grown[each.name, each.shape].count - each.count
        results.append(replace(each, count=each.count + more * step))
    return tuple(results)
