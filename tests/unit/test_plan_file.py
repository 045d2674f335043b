"""Plan files: what is refused, and with which words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_plan_synthetic import offer, synthetic_source

from gpuwise.errors import FileFormatError, InputError, JobError
from gpuwise.hardware import load_catalog
from gpuwise.plan import Plan, Request, load_plan, save_plan
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.plan.search import plan
from gpuwise.strategy import HostSettings


@pytest.fixture(scope="module")
def made() -> Plan:
    request = Request(samples=10**9, budget_usd=10_000.0, deadline_s=90 * 86400.0, job_argument="net.py:job")
    offers = [offer("a100-80gb-sxm", 8.0, count=8, terms="spot", vcpus=96, network_bytes_per_s=1e9)]
    return plan(StepTraces(synthetic_source(width=2048)), request, offers, load_catalog()).best


def test_a_plan_reads_back_equal(made, tmp_path):
    path = tmp_path / "plan.toml"
    save_plan(made, path)
    assert load_plan(path) == made
    assert load_plan(path).to_dict() == made.to_dict()
    assert path.read_text().startswith("#")
    assert [p.name for p in tmp_path.iterdir()] == ["plan.toml"]


def test_host_settings_are_kept_in_the_table_of_the_strategy(made, tmp_path):
    path = tmp_path / "plan.toml"
    own = replace(made, host=HostSettings(threads=4, pinned_memory=False))
    save_plan(own, path)
    assert "[host]" not in path.read_text()
    assert "threads = 4\n" in path.read_text().partition("[strategy]")[2].partition("\n[")[0]
    assert load_plan(path) == own
    assert own.to_dict()["strategy"] == {**made.to_dict()["strategy"], "threads": 4, "pinned_memory": False}


def test_saving_again_replaces_and_a_failed_save_leaves_nothing(made, tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text("old")
    save_plan(made, path)
    assert load_plan(path) == made
    with pytest.raises(InputError, match="cannot write"):
        save_plan(made, tmp_path / "no-such-folder" / "plan.toml")


def test_absent_truncated_and_foreign_files_are_refused(made, tmp_path):
    path = tmp_path / "plan.toml"
    with pytest.raises(FileFormatError, match="there is no plan file"):
        load_plan(path)
    save_plan(made, path)
    whole = path.read_text()
    for cut in [*range(0, len(whole), 97), *range(len(whole) - 120, len(whole) - 1)]:
        path.write_text(whole[:cut])
        with pytest.raises(FileFormatError):
            load_plan(path)
    path.write_bytes(b"\xff\xfe\x00binary")
    with pytest.raises(FileFormatError, match="damaged"):
        load_plan(path)
    path.write_text('[project]\nname = "other"\n')
    with pytest.raises(FileFormatError, match="not a gpuwise plan"):
        load_plan(path)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("version = 1", "version = 2", "version 2; this gpuwise reads 1"),
        ("version = 1", "version = true", "version True"),
        ("rank = 1", 'rank = "first"', "rank must be int"),
        ("rank = 1", "rank = 1\nunheard_of = 3", "unknown key unheard_of"),
        ("finish_probability = ", "finish_probability = nan #", "finish_probability must be finite"),
        ('precision = "amp-bf16"', 'precision = "fp7"', "fp7"),
        ("micro_batch = ", "micro_batch = -", "micro-batch must be"),
        ("micro_batch = ", 'threads = "all"\nmicro_batch = ', "strategy.threads must be int"),
        ("[end]", "[host]\nthreads = 2\n[end]", "unknown key host"),
        ('job = "synthetic"', "", "job is missing"),
        ('provider = "somewhere"', "provider = []", "offer.provider must be str"),
    ],
)
def test_wrong_values_are_refused_by_name(made, tmp_path, old, new, told):
    path = tmp_path / "plan.toml"
    save_plan(made, path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(FileFormatError, match=told):
        load_plan(path)


def test_a_plan_for_another_job_is_refused(made):
    made.check_job(made.job_fingerprint)
    with pytest.raises(JobError, match="for another job"):
        made.check_job("0" * 16)
