"""Notebooks and tasks of dstack by the parsers that read them. In an environment of its own: sessions-requirements.txt."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.launch_samples import sample_plan

import gpuwise
from gpuwise.hardware import load_catalog
from gpuwise.launch import dstack as dstack_target
from gpuwise.launch import notebook as notebook_target
from gpuwise.launch.device_names import device_tables
from gpuwise.launch.make import describe

configurations = pytest.importorskip("dstack._internal.core.models.configurations", reason="sessions-requirements.txt")
nbformat = pytest.importorskip("nbformat", reason="sessions-requirements.txt")
yaml = pytest.importorskip("yaml")

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
NAMES = device_tables()["dstack"]
CHIPS = {**NAMES.names, **NAMES.unsure}


def task(folder):
    return configurations.parse_apply_configuration(yaml.safe_load((folder / "gpuwise.dstack.yml").read_text()))


def test_dstack_refuses_a_typo(tmp_path):
    from dstack._internal.core.errors import ConfigurationError

    gpuwise.launch(sample_plan(), to="dstack", output=tmp_path, restarts=0, set=["instance-type=any"])
    content = yaml.safe_load((tmp_path / "gpuwise.dstack.yml").read_text())
    with pytest.raises(ConfigurationError):
        configurations.parse_apply_configuration({**content, "max_durations": 1})


@pytest.mark.parametrize("chip", CHIPS)
def test_a_task_is_what_the_plan_has(chip, tmp_path):
    plan = replace(sample_plan(devices=16, machines=2, terms="spot"), device=chip)
    gpuwise.launch(
        plan,
        to="dstack",
        output=tmp_path,
        run="/runs/a",
        image="ghcr.io/team/train:1",
        set=["shared=/mnt/runs", "instance-type=any.8x", "region=us-east-1", "max-price=31.5", "shm-size=16GB"],
        time_limit="3h",
    )
    parsed = task(tmp_path)
    gpu = parsed.resources.gpu
    name, _, memory = CHIPS[chip].partition(":")
    assert (gpu.name, gpu.count.min, gpu.count.max) == ([name], 8, 8)
    assert gpu.memory.min == gpu.memory.max == float(memory.removesuffix("GB"))
    assert (parsed.nodes, parsed.image, parsed.spot_policy.value) == (2, "ghcr.io/team/train:1", "spot")
    assert (parsed.max_duration, parsed.max_price) == (3 * 3600, 31.5)
    assert (parsed.instance_types, parsed.regions) == (["any.8x"], ["us-east-1"])
    assert (parsed.volumes[0].instance_path, parsed.volumes[0].path) == ("/mnt/runs", "/runs")
    assert {event.value for event in parsed.retry.on_events} == {"no-capacity", "interruption", "error"}
    assert parsed.retry.duration == 86400
    assert parsed.commands == ["bash /gpuwise/gpt2/run.sh"]
    assert {(each.local_path, each.path) for each in parsed.files} == {
        (f"./{name}", f"/gpuwise/gpt2/{name}") for name in ("plan.toml", "run.sh")
    }


def test_dstack_knows_every_name():
    from gpuhunt._internal.constraints import KNOWN_ACCELERATORS

    known = {(each.name, each.memory) for each in KNOWN_ACCELERATORS}
    catalog = load_catalog()
    for chip, text in CHIPS.items():
        name, _, memory = text.partition(":")
        assert (name, int(memory.removesuffix("GB"))) in known, chip
        assert catalog.chips[chip].memory_bytes == pytest.approx(int(memory.removesuffix("GB")) * 2**30, rel=0.1), chip


def test_a_machine_of_a_cloud_is_the_one_that_was_planned(tmp_path):
    base = sample_plan(devices=8, terms="spot", provider="aws")
    plan = replace(base, offer=replace(base.offer, instance="p5.48xlarge"))
    gpuwise.launch(plan, to="dstack", output=tmp_path, run="/runs/a", set=["volume=runs"])
    parsed = task(tmp_path)
    assert ([each.value for each in parsed.backends], parsed.instance_types) == (["aws"], ["p5.48xlarge"])
    assert (parsed.volumes[0].name, parsed.volumes[0].path) == ("runs", "/runs")


def test_a_cpu_needs_no_gpu(tmp_path):
    gpuwise.launch(sample_plan(cpu=True), to="dstack", output=tmp_path, restarts=0)
    parsed = task(tmp_path)
    assert (parsed.resources.gpu.count.min, parsed.resources.gpu.count.max) == (0, 0)
    assert parsed.retry is None


@settings(max_examples=60, deadline=None)
@given(name=TEXTS.filter(str.strip), run=TEXTS, instance=TEXTS.filter(str.strip))
def test_dstack_reads_odd_names_as_they_are(name, run, instance):
    plan = sample_plan()
    values = {"name": "ab", "restarts": 0, "set": ["instance-type=x"]}
    launched = describe(plan, dstack_target.TARGET, values, plan_bytes=b"", vendor="NVIDIA").launch
    launched = replace(
        launched, files={name: b""}, settings={"volume": "runs", "instance-type": instance}, run_folder=f"/r{run}/x"
    )
    try:
        dstack_target.adapts(launched)
    except gpuwise.errors.InputError:
        return  # .. in the path
    text = dstack_target.files(launched)["gpuwise.dstack.yml"]
    parsed = configurations.parse_apply_configuration(yaml.safe_load(text))
    assert parsed.files[0].local_path == f"./{name}"
    assert parsed.instance_types == [instance]
    assert text.isascii()


@settings(max_examples=60, deadline=None)
@given(value=TEXTS, name=TEXTS.filter(str.strip), cpu=st.booleans(), site=st.sampled_from(["colab", "kaggle"]))
def test_notebooks_are_valid_whatever_a_job_is_called(value, name, cpu, site):
    plan = sample_plan(cpu=True) if cpu else replace(sample_plan(), device="t4")
    settings_of_launch = {"name": "a", "set": [f"site={site}"], "env": [f"A={value}"]}
    described = describe(replace(plan, job=name), notebook_target.TARGET, settings_of_launch, plan_bytes=b"\xff", vendor="")
    content = nbformat.reads(notebook_target.files(described.launch)["train.ipynb"], as_version=4)
    nbformat.validate(content)
    assert (content.nbformat, content.nbformat_minor) == (4, 5)


def test_ray_makes_every_name_of_the_drivers():
    """The tables of Kubernetes have what the driver calls a chip, with hyphens for blanks."""
    nvidia_gpu = pytest.importorskip("ray._private.accelerators.nvidia_gpu", reason="sessions-requirements.txt")
    import ray.util.accelerators as constants

    drivers = {chip: name.replace("-", " ") for chip, name in device_tables()["kubernetes"].names.items()}
    known = {value for name, value in vars(constants).items() if name.startswith(("NVIDIA", "AMD"))}
    for chip, name in device_tables()["ray"].names.items():
        made = nvidia_gpu.NvidiaGPUAcceleratorManager._gpu_name_to_accelerator_type(drivers.get(chip))
        assert name == made or name in known, chip
