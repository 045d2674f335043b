"""ServingMode: what is special about an instance, beside a model on its devices."""

from __future__ import annotations

from typing import Protocol


class ServingMode(Protocol):
    """A frozen dataclass of figures: they are the row's "mode" in JSON."""

    @property
    def words(self) -> str:
        """A sentence for the report."""
        ...
