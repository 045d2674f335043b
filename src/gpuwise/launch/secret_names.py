"""Keys do not belong into files: variables that are named like one are refused where the target has another way."""

from __future__ import annotations

import re

from gpuwise.errors import InputError
from gpuwise.launch.description import Launch

_SECRET = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|(API|ACCESS|PRIVATE)_?KEY)(_ID|_\d+)?$", re.IGNORECASE)


def no_secrets(launch: Launch, way_out: str) -> None:
    """Raises InputError for a variable of the training whose name is that of a key.

    Arguments:
        way_out: how the target gives a key to the training.
    """
    for name in launch.environment:
        if _SECRET.search(name):
            raise InputError(f"--env {name}: its value would stand in the files of the launch.", [way_out])
