"""Every folder with tests is collected: pytest leaves out some names by default, `dist` among them."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def test_no_folder_with_tests_is_left_out(pytestconfig: pytest.Config):
    left_out = pytestconfig.getini("norecursedirs")
    folders = {path.parent.name for path in TESTS.rglob("test_*.py")}
    assert {"dist", "unit"} <= folders
    assert [name for name in sorted(folders) if any(fnmatch(name, pattern) for pattern in left_out)] == []
