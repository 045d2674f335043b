"""Calibration: the figures for one chip, each from the most specific file that has it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

from gpuwise.cost.calibration.entry import CalibrationEntry
from gpuwise.cost.calibration.files import LEVELS, CalibrationFile, shipped_file
from gpuwise.cost.calibration.machine import machine_file
from gpuwise.cost.calibration.steps import StepSpread
from gpuwise.cost.rates import family
from gpuwise.hardware.types import Chip

# Similar classes, tried in order if a class has no entry of its own.
ALIASES = {
    "bf16": ("fp16",),
    "fp16": ("bf16",),
    "tf32": ("fp16", "bf16"),
    "fp64": ("fp32",),
    "int8": ("fp8", "bf16", "fp16"),
    "fp8": ("int8", "bf16", "fp16"),
    "fp4": ("fp8", "bf16", "fp16"),
}
# Decoding streams keys and values: where nothing of fp32 was measured, its bytes take what those of half precision do.
_DECODE_ALIASES = {"fp32": ("bf16", "fp16")}
BYTES_OF_A_UNIT = "unit_bytes"  # feature of products: what a multiprocessor reads
# Architectures of one generation, which share most kernels. Any other architecture is a generation by itself.
_GENERATIONS = {"Zen 4": "AMD AVX-512", "Zen 5": "AMD AVX-512"}


@dataclass(frozen=True)
class AppliedEntry:
    """An entry applied to a chip. `level` is the level of its source; `scale` multiplies its time beyond the floor."""

    entry: CalibrationEntry
    level: str
    scale: float = 1.0

    @property
    def applied(self) -> CalibrationEntry:
        """The entry with its terms multiplied by the scale."""
        if self.scale == 1.0:
            return self.entry
        terms = {name: replace(term, scale=term.scale * self.scale) for name, term in self.entry.terms.items()}
        return replace(self.entry, terms=terms)


@dataclass(frozen=True)
class Calibration:
    """The files that apply to a chip, most specific first. spreads: spreads of steps, in addition to the shipped ones.

    few_rows: whether figures of products are for those of few rows (see of_few_rows).
    """

    files: tuple[CalibrationFile, ...]
    spreads: tuple[StepSpread, ...] = ()
    few_rows: bool = False
    _applied: dict[tuple[str, str], AppliedEntry | None] = field(default_factory=dict, compare=False, repr=False)

    def find(self, kind: str, numerics: str = "") -> AppliedEntry | None:
        """The entry for a class of kernels that computes in `numerics` ("" where only bytes matter), or None.

        Level first, likeness second: a chip's own fp16 figures before its family's bf16 ones. A class without an entry at any
        level takes that of the class it is a case of: channels-last that of the usual layout, backward that of forward,
        batched or grouped that of a single one.
        """
        key = (kind, numerics)
        if key not in self._applied:
            tried = (self._search(name, numerics, used_for=kind) for name in likely(kind))
            self._applied[key] = next((entry for entry in tried if entry), None)
            if self.few_rows and self._applied[key] is None:  # no file has figures that were learned over sizes
                self._applied[key] = replace(self, few_rows=False, _applied={}).find(kind, numerics)
        return self._applied[key]

    def of_few_rows(self) -> Calibration:
        """The same for products of few rows, which read a matrix once: another kernel than those of many rows.

        A memory term that was learned from whole steps has no curve over the bytes of a product. All products of such steps
        have many rows, and the term holds all that else took their time. Those of few rows take the first term, from the most
        specific file on, that was learned over sizes, few rows among them.
        """
        return replace(self, few_rows=True, _applied={})

    def _applies(self, name: str, file: CalibrationFile) -> bool:
        """Whether a file's entry is one for the rows that are looked for."""
        if not self.few_rows or file.level == "machine" or not name.startswith("gemm"):
            return True
        memory = file.entries[name].terms.get("memory")
        return memory is None or any(curve.over == BYTES_OF_A_UNIT for curve in memory.curves)

    def _search(self, kind: str, numerics: str, *, used_for: str) -> AppliedEntry | None:
        """The entry of one class. used_for: what it is to be used for, whose own factors count first."""
        aliases = ALIASES | _DECODE_ALIASES if kind == "attention_decode" else ALIASES
        names = [f"{kind}.{n}" for n in (numerics, *aliases.get(numerics, ()))] if numerics else [kind]
        own = (f"{used_for}.{numerics}" if numerics else used_for, names[0], kind)
        scale, level = 1.0, ""
        for file in self.files:
            for name in names:
                if name in file.entries and self._applies(name, file):
                    return AppliedEntry(file.entries[name], level or file.level, scale)
            factor = next((file.scale[name] for name in own if name in file.scale), None)
            if factor is not None:
                scale, level = scale * factor, level or file.level
        return None


def likely(kind: str) -> list[str]:
    """conv_grouped_channels_last_backward -> itself, conv_grouped_backward, conv_grouped_channels_last, conv_grouped, ...;
    elementwise_activation_gelu -> itself, elementwise_activation, elementwise."""
    plain = kind.replace("_channels_last", "")
    forward = [name.removesuffix("_backward") for name in (kind, plain)]
    backward = "_backward" if kind.endswith("_backward") else ""
    first, *rest = forward[1].split("_")
    wider = ["_".join([first, *rest[:count]]) for count in range(len(rest) - 1, 0, -1)]
    return list(dict.fromkeys([kind, plain, *forward, *wider, first + backward, first]))


def names_of(chip: Chip) -> dict[str, str]:
    """The names of a chip at each level of calibration.

    NVIDIA's architectures are named by compute capability ("sm_86"), because the catalog's name covers GA100 and GA102.
    """
    architecture = chip.architecture or ""
    generation = _GENERATIONS.get(architecture, architecture.removesuffix(" Ultra"))
    if chip.compute_capability:
        architecture = "sm_{}{}".format(*chip.compute_capability)
    return {"chip": chip.id, "architecture": architecture, "generation": generation, "family": family(chip)}


@lru_cache(maxsize=512)
def calibration_of(chip_id: str, architecture: str, generation: str, family_name: str) -> Calibration:
    candidates = map(shipped_file, LEVELS, (chip_id, architecture, generation, family_name))
    return Calibration(tuple(file for file in candidates if file is not None))


def calibration(chip: Chip) -> Calibration:
    """The shipped figures for a chip. Figures measured on this machine precede them for this machine's chip."""
    shipped_figures = calibration_of(*(names_of(chip)[level] for level in LEVELS))
    measured = machine_file(chip.calibration) if chip.calibration else None
    if measured is None or measured.file.of != chip.id:
        return shipped_figures
    return Calibration((measured.file, *shipped_figures.files), measured.spreads)
