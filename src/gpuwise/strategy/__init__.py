"""The settings of training: Strategy (the step of one rank), Mesh and Parallelism (its devices), HostSettings (its host)."""

from gpuwise.strategy.exclusion import StepFacts
from gpuwise.strategy.host import HostSettings
from gpuwise.strategy.idle import check_layout_works, check_settings_work
from gpuwise.strategy.kernels import (
    KERNELS_OF,
    OPTIMIZER_KERNELS,
    OPTIMIZERS,
    fused_sgd_fault,
    kernels_for,
    kernels_of,
    nothing_for_muon,
)
from gpuwise.strategy.legal import EXCLUSIONS, check_techniques
from gpuwise.strategy.mesh import AXES, Mesh
from gpuwise.strategy.parallelism import CONTEXTS, PIPELINE_SCHEDULES, SHARDS, SINGLE_STAGE_SCHEDULES, Parallelism
from gpuwise.strategy.strategy import ADAPTERS, MODES, OFFLOADS, PRECISIONS, RECOMPUTES, Strategy, StrategyChanges

__all__ = [
    "ADAPTERS",
    "AXES",
    "CONTEXTS",
    "EXCLUSIONS",
    "KERNELS_OF",
    "MODES",
    "OFFLOADS",
    "OPTIMIZERS",
    "OPTIMIZER_KERNELS",
    "PIPELINE_SCHEDULES",
    "PRECISIONS",
    "RECOMPUTES",
    "SHARDS",
    "SINGLE_STAGE_SCHEDULES",
    "HostSettings",
    "Mesh",
    "Parallelism",
    "StepFacts",
    "Strategy",
    "StrategyChanges",
    "check_layout_works",
    "check_settings_work",
    "check_techniques",
    "fused_sgd_fault",
    "kernels_for",
    "kernels_of",
    "nothing_for_muon",
]
