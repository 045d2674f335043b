"""Design: which figures of an entry are fitted, and within which bounds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuwise.cost.calibration import CalibrationEntry, EfficiencyCurve, Term


@dataclass(frozen=True)
class CurveDesign:
    """A curve with its knots. slope: bounds of d log(factor) / d log(feature).

    A time grows with its sizes as long as the slopes of all curves that contain a size sum to -1 or more: that is how a larger
    operation is never quicker, whatever the data say.
    """

    over: str
    at: tuple[float, ...]
    slope: tuple[float, float] = (-0.5, 0.25)


@dataclass(frozen=True)
class TermDesign:
    """scale: bounds. curves: see CurveDesign."""

    scale: tuple[float, float] = (1.0, 5.0)
    curves: tuple[CurveDesign, ...] = ()


@dataclass(frozen=True)
class Design:
    """The form of an entry: terms by name; sharpness and floor_s with their bounds (equal bounds fix them)."""

    terms: dict[str, TermDesign]
    sharpness: tuple[float, float] = (1.5, 8.0)
    floor_s: tuple[float, float] = (1e-6, 6e-6)

    def start(self, prior: CalibrationEntry | None = None) -> CalibrationEntry:
        """An entry of this form: terms that `known` has as they are there, others in the middle of their bounds with flat
        curves."""
        middle = self._middle()
        if prior is None:
            return middle
        return replace(prior, terms={name: prior.terms.get(name, term) for name, term in middle.terms.items()})

    def _middle(self) -> CalibrationEntry:
        return CalibrationEntry(
            {
                name: Term(
                    (term.scale[0] * term.scale[1]) ** 0.5 if term.scale[0] else term.scale[1] / 2,
                    tuple(EfficiencyCurve(curve.over, curve.at, (1.0,) * len(curve.at)) for curve in term.curves),
                )
                for name, term in self.terms.items()
            },
            (self.sharpness[0] * self.sharpness[1]) ** 0.5,
            (self.floor_s[0] + self.floor_s[1]) / 2,
        )
