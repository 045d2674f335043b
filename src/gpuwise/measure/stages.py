"""The stages of a measurement: the microbenchmarks, their order and their time budgets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """One part of a measurement.

    Attributes:
        name: a module of gpuwise.measure.probes; "network" for an observed step of gpuwise.measure.networks, "writing" for one
            of gpuwise.measure.writing_networks, "small" for one of gpuwise.measure.small_networks; "again" for a second
            measurement of memory, which shows whether the machine has changed meanwhile.
        what: description for the progress display.
        budget_s: seconds of a probe.
        network: index of the network.
        precision: precision of the network.
        mode: mode of the network, such as train.
        steps: observed steps of the network.
    """

    name: str
    what: str
    budget_s: float = 0.0
    network: int = 0
    precision: str = "fp32"
    mode: str = "train"
    steps: int = 3


# Seconds of the quick and of the full sweep, on two cores.
PROBES = (
    ("memory", "memory bandwidth", 5.0, 15.0),
    ("peaks", "matrix products", 5.0, 20.0),
    ("copies", "copies between host and device", 2.0, 6.0),
    ("collectives", "collectives between devices, or processes on a CPU", 6.0, 12.0),
)


GPU_PROBES = ("copies",)  # a CPU is its own host
AGAIN_S = 6.0


def stages(
    *, quick: bool, networks: int, quick_networks: int, half: str | None, writing: int = 0, small: int = 0, device: str = "cpu"
) -> Iterator[Stage]:
    """Yields the stages, with peaks and bandwidth first: a fit needs them even if the measurement ends early.

    Arguments:
        quick: whether to yield the quick sweep.
        networks: number of networks.
        quick_networks: number of networks in the quick sweep.
        half: 16-bit precision of the device, in which networks are repeated (in the quick sweep every other one); None if
            the device has none.
        writing: number of networks that write tokens. A CPU alone runs them: a GPU's fit has one factor for all products.
        small: number of small networks. A CPU alone runs them, too: a GPU's launches have figures of their own.
        device: PyTorch's type of the measured device, such as cpu or cuda.
    """
    for name, what, quick_s, full_s in PROBES:
        budget_s = quick_s if quick else full_s
        if budget_s and (device != "cpu" or name not in GPU_PROBES):
            yield Stage(name, what, budget_s)
    for network in range(quick_networks if quick else networks):
        yield Stage("network", "training steps", network=network, steps=3 if quick else 5)
    for network in range(writing if device == "cpu" else 0):
        yield Stage("writing", "passes that write tokens", network=network, mode="infer", steps=3)
    for network in range(small if device == "cpu" else 0):
        yield Stage("small", "passes of small networks", network=network, mode="infer", steps=3)
    if half is not None:
        for network in range(1, quick_networks, 2) if quick else range(networks):
            yield Stage("network", f"training steps, {half}", network=network, precision=half, steps=3)
    if quick:
        return
    for network in range(0, networks, 3):
        yield Stage("network", "forward passes", network=network, mode="infer", steps=3)
    yield Stage("again", "memory bandwidth, once more", AGAIN_S)
