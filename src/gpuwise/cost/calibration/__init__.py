"""The efficiency of chips against their datasheets: fitted figures by chip, architecture, generation and family."""

from gpuwise.cost.calibration.entry import CalibrationEntry, EfficiencyCurve, Term, to_table
from gpuwise.cost.calibration.files import LEVELS, PROVENANCE, CalibrationFile, parse, shipped
from gpuwise.cost.calibration.levels import AppliedEntry, Calibration, calibration, names_of
from gpuwise.cost.calibration.steps import StepSpread, joined_spread, parse_steps, shipped_steps, step_spread

__all__ = [
    "LEVELS",
    "PROVENANCE",
    "AppliedEntry",
    "Calibration",
    "CalibrationEntry",
    "CalibrationFile",
    "EfficiencyCurve",
    "StepSpread",
    "Term",
    "calibration",
    "joined_spread",
    "names_of",
    "parse",
    "parse_steps",
    "shipped",
    "shipped_steps",
    "step_spread",
    "to_table",
]
