"""Which figures of an entry explain measured times best: of tables of kernels, whole steps, or operations watched in steps."""

from gpuwise.measure.fitting.design import CurveDesign, Design, TermDesign
from gpuwise.measure.fitting.solve import Block, Measured, solve

__all__ = ["Block", "CurveDesign", "Design", "Measured", "TermDesign", "solve"]
