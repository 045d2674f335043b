"""What tests of several ranks leave behind is ended."""

from __future__ import annotations

from collections.abc import Iterator

import launched
import pytest


@pytest.fixture(autouse=True)
def _no_run_is_left() -> Iterator[None]:
    """A test that fails leaves its run training; ranks end within a minute of their launcher."""
    yield
    while launched.STARTED:
        process = launched.STARTED.pop()
        if process.poll() is None:
            process.kill()
            process.communicate()
