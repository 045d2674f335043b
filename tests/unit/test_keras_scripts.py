"""Scripts of Keras's other backends: what they say of a plan, and for what they are refused. They run in tests/validators."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest

from gpuwise.errors import UnsupportedError
from gpuwise.export.formats import call_of
from gpuwise.export.target import DeviceSet, Heading
from gpuwise.export.targets import SCRIPTS, target_of
from gpuwise.export.values import FIELDS, values_of_strategy
from gpuwise.export.writing import exported, keys_of_plan
from gpuwise.hardware import load_catalog
from gpuwise.plan.buying.runnable import train_obstacle
from gpuwise.strategy import Mesh, Strategy

HEADING = Heading("net", "0" * 64, "0.1.0", "keras 3.15.1", "run it")


def settings_of(name: str, strategy: Strategy) -> dict[str, object]:
    """What a script of these settings has as literals."""
    target = target_of(name)
    keys, _, _ = keys_of_plan(target, {**values_of_strategy(strategy), "steps": 7}, DeviceSet(strategy.mesh.devices))
    text = target.write(keys, HEADING)
    ast.parse(text)
    return dict(call_of(text, (".dict",)))


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_field_has_a_row_and_every_key_is_the_scripts(name: str) -> None:
    target = target_of(name)
    assert {field for row in target.rows for field in row.fields} == set(FIELDS)
    assert all(target.schema.names(key) for row in target.rows for key in row.own_keys())


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_has_the_settings_of_the_plan(name: str) -> None:
    settings = settings_of(name, Strategy("amp-bf16", micro_batch=8, mesh=Mesh(dp_replicate=4)))
    assert settings["backend"] == {"keras": "jax"}.get(name, name)
    assert (settings["dtype_policy"], settings["batch_size_of_a_device"], settings["devices"]) == ("mixed_bfloat16", 8, 4)
    assert settings["steps"] == 7
    assert "distribution" not in settings_of(name, Strategy(micro_batch=8))


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize(
    ("strategy", "field"),
    [
        (Strategy(accumulation=2), "accumulation"),
        (Strategy(mesh=Mesh(dp_shard=2)), "dp_shard"),
        (Strategy(optimizer="muon"), "optimizer"),
        (Strategy(recompute="full"), "recompute"),
        (Strategy("fp8"), "precision"),
    ],
)
def test_what_a_script_cannot_have_is_refused_by_name(name: str, strategy: Strategy, field: str) -> None:
    with pytest.raises(UnsupportedError, match=field):
        settings_of(name, strategy)


def test_a_plan_for_a_tpu_names_the_script() -> None:
    chip = next(chip for chip in load_catalog().chips.values() if chip.kind == "tpu")
    assert "export PLAN --to keras" in train_obstacle(chip, Strategy(), job_argument="keras:net.py:net")
    assert train_obstacle(chip, Strategy(), job_argument="net.py:job") == "needs PyTorch/XLA"


def test_other_jobs_have_no_such_script() -> None:
    import gpuwise

    plan = gpuwise.plan("gpt2", samples="10k", on="h100-sxm").plans[0]
    with pytest.raises(UnsupportedError, match="trains Keras models, and the plan is of gpt2"):
        exported(plan, target_of("keras"), file="run.py", plan_sha256="0" * 64)
    of_keras = replace(plan, job_argument="keras:net.py:net")
    assert "KERAS_BACKEND" in exported(of_keras, target_of("keras"), file="run.py", plan_sha256="0" * 64).text
