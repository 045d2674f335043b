"""Which figures of an entry explain measured times best: of tables of kernels, whole steps, or operations watched in steps."""

from gpuwise.measure.fitting.design import CurveDesign, Design, TermDesign
from gpuwise.measure.fitting.entry_model import ParameterBlock
from gpuwise.measure.fitting.solve import MeasuredSeconds, solve

__all__ = ["CurveDesign", "Design", "MeasuredSeconds", "ParameterBlock", "TermDesign", "solve"]
