"""The commands of docs/launch-sessions.md run, one after the other in one folder."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuwise.cli.main import main

PAGE = Path(__file__).parents[2] / "docs" / "launch-sessions.md"


@pytest.mark.skipif(not PAGE.exists(), reason="not run from the source tree")
def test_the_commands_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines() if line.startswith("gpuwise ")]
    assert len(commands) >= 7
    for command in commands:
        result = CliRunner().invoke(main, shlex.split(command)[1:], catch_exceptions=False)
        assert result.exit_code == 0, f"{command}\n{result.output}{result.stderr}"
    for file in ("session/train.ipynb", "pushed/kernel-metadata.json", "task/gpuwise.dstack.yml", "job/ray_train.py"):
        assert (tmp_path / file).is_file()
