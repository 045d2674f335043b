"""Of the results of benchmarks.cpu_plan a part is replaced alone, and says of what machine and day it is."""

import json

from benchmarks import cpu_plan


def test_a_part_is_written_and_the_other_stays(monkeypatch, tmp_path):
    file = tmp_path / "cpu_plan.json"
    before = {"steps": {"date": "2026-01-02", "machine": "another", "torch": "2.10", "rows": [{"job": "gpt2"}]}}
    file.write_text(json.dumps(before), encoding="utf-8")
    monkeypatch.setattr(cpu_plan, "RESULTS", file)
    monkeypatch.setattr(cpu_plan, "candidates", lambda: iter([{"job": "resnet50"}]))
    monkeypatch.setattr("sys.argv", ["cpu_plan", "--only", "candidates", "--write"])
    cpu_plan.main()
    result = json.loads(file.read_text(encoding="utf-8"))
    assert result.keys() == {"steps", "candidates"}
    assert result["steps"] == before["steps"]
    assert result["candidates"].keys() == before["steps"].keys()
    assert result["candidates"]["rows"] == [{"job": "resnet50"}]
