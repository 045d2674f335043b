"""The log: JSON lines that are whole, never overwritten, never where nothing was trained."""

import json
import math

import pytest

from gpuwise.errors import InputError
from gpuwise.runtime.log import RunLog, read_log


def records(path):
    return [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]


def test_lines_are_there_as_soon_as_written(tmp_path):
    path = tmp_path / "log.jsonl"
    with RunLog(path) as log:
        assert not path.exists()
        log.open({"job": "toy"})
        log.write("step", {"step": 1, "loss": 0.5})
        assert [r["record"] for r in records(path)] == ["header", "step"]


def test_numbers_that_json_lacks_become_null(tmp_path):
    path = tmp_path / "log.jsonl"
    with RunLog(path) as log:
        log.open({"a": [math.inf, {"b": math.nan}], "c": 1.5})
    assert records(path)[0]["a"] == [None, {"b": None}]
    assert records(path)[0]["c"] == 1.5


def test_a_second_run_is_appended_even_after_a_torn_line(tmp_path):
    path = tmp_path / "log.jsonl"
    for job in ("first", "second"):
        with RunLog(path) as log:
            log.open({"job": job})
        with path.open("a") as file:
            file.write('{"record": "st')
    assert [r["job"] for r in read_log(path)] == ["first", "second"]


@pytest.mark.parametrize("content", [b"import torch\n", b"\xff\xfe\x00", b"[1]\n", b'{"a": 1}\n', b"{" * 100_000])
def test_a_file_that_is_no_log_is_left_alone(tmp_path, content):
    path = tmp_path / "train.py"
    path.write_bytes(content)
    with pytest.raises(InputError, match="is no log"):
        RunLog(path)
    assert path.read_bytes() == content


def test_paths_that_cannot_be(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        RunLog(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        RunLog(tmp_path / "no" / "log.jsonl")


def test_without_a_path_nothing_happens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with RunLog(None) as log:
        log.open({})
        log.write("step", {})
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_ends_the_log_not_the_run(tmp_path):
    class Full:
        def write(self, line):
            raise OSError(28, "No space left on device")

        def close(self):
            pass

    with RunLog(tmp_path / "log.jsonl") as log:
        log._file = Full()
        log.write("step", {})
        log.write("step", {})
    assert log.problem is not None
    assert "No space left" in log.problem
