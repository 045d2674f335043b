"""The targets by name: one module each. A new one is a module with an ExportTarget, and a line here."""

from __future__ import annotations

from importlib import import_module

from gpuwise.errors import unknown_name
from gpuwise.export.target import ExportTarget

TARGETS = ("accelerate", "transformers", "deepspeed", "lightning", "torchtitan", "megatron")
SCRIPTS = ("keras", "tensorflow")  # of Keras models on other backends; they are written, not read


def target_of(name: str) -> ExportTarget:
    """The target of this name. Raises UnknownNameError."""
    if name not in (*TARGETS, *SCRIPTS):
        raise unknown_name("target", name, [*TARGETS, *SCRIPTS], listing="gpuwise export --help")
    target: ExportTarget = import_module(f"gpuwise.export.targets.{name}").TARGET
    return target


def all_targets() -> list[ExportTarget]:
    """Every target whose files are read."""
    return [target_of(name) for name in TARGETS]
