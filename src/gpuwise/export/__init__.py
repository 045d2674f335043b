"""Plans as files of the peers that people train with, and those files as strategies that can be forecast.

A target is a table of rows (`rows.py`) and a form of file (`targets/`); one table serves both directions.
"""

from gpuwise.lazy import lazily

__getattr__ = lazily(
    __name__,
    {
        "writing": ("exported",),
        "reading": ("read_config",),
        "types": ("ConfigRead", "Exported"),
        "targets": ("TARGETS", "target_of"),
    },
)
__all__ = ["TARGETS", "ConfigRead", "Exported", "exported", "read_config", "target_of"]
