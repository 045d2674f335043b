"""The settings of training: Strategy (the step of one rank), Mesh (the devices) and HostSettings (the host)."""

from gpuwise.strategy.host import HostSettings
from gpuwise.strategy.kernels import (
    KERNELS_OF,
    OPTIMIZER_KERNELS,
    OPTIMIZERS,
    fused_sgd_fault,
    kernels_for,
    kernels_of,
)
from gpuwise.strategy.legal import EXCLUSIONS, StepFacts, check_techniques
from gpuwise.strategy.mesh import Mesh
from gpuwise.strategy.strategy import ADAPTERS, MODES, OFFLOADS, PRECISIONS, RECOMPUTES, Strategy, StrategyChanges

__all__ = [
    "ADAPTERS",
    "EXCLUSIONS",
    "KERNELS_OF",
    "MODES",
    "OFFLOADS",
    "OPTIMIZERS",
    "OPTIMIZER_KERNELS",
    "PRECISIONS",
    "RECOMPUTES",
    "HostSettings",
    "Mesh",
    "StepFacts",
    "Strategy",
    "StrategyChanges",
    "check_techniques",
    "fused_sgd_fault",
    "kernels_for",
    "kernels_of",
]
