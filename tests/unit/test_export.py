"""Exported files: every field of a plan has a row, a file reads back as what it was written from, and bad files are refused."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn_strategies import drawn_strategy
from tests.launch_samples import sample_plan

from gpuwise import api
from gpuwise.errors import FileFormatError, InputError, UnknownNameError, UnsupportedError
from gpuwise.export.cells import IN_SCRIPT
from gpuwise.export.reading import read_config
from gpuwise.export.rows import Never
from gpuwise.export.target import DeviceSet, ExportTarget, Heading
from gpuwise.export.targets import SCRIPTS, TARGETS, all_targets, target_of
from gpuwise.export.types import ConfigRead
from gpuwise.export.values import FIELDS, HOST, RUN, Value, defaults, strategy_of_values, values_of_strategy
from gpuwise.export.writing import keys_of_plan
from gpuwise.strategy import HostSettings, Mesh, Parallelism, Strategy

HEADING = Heading("job", "0" * 64, "0.1.0", "peer 1", "run it")
TAKEN_BACK = set(FIELDS) - set(HOST) - {"mode", *RUN}
FLAGS = {"accumulation": "accumulate"}
FIELD = {"accumulate": "accumulation"}
TAKEN = TAKEN_BACK | {"accumulate"}


def values_with(strategy: Strategy, **more: Value) -> dict[str, Value]:
    return {**values_of_strategy(strategy, HostSettings(loader_workers=2)), **more}


def world_of(strategy: Strategy) -> DeviceSet:
    return DeviceSet(strategy.mesh.devices)


def read_back(target: ExportTarget, values: dict[str, Value], strategy: Strategy) -> tuple[Strategy, Strategy]:
    """The strategy of a written file, with what it leaves to the script from flags, and the one that the target trains."""
    keys, lines, nearest = keys_of_plan(target, values, world_of(strategy))
    script = {name for line in lines if line.status == IN_SCRIPT for name in line.field.split(", ")}
    named = {FLAGS.get(name, name): nearest[name] for name in script & TAKEN_BACK if nearest[name] is not None}
    read = read_config(target.write(keys, HEADING), file="file", world=world_of(strategy), named=named)
    assert read.target == target.name
    values_back: dict[str, Value] = {**defaults(), **asdict(read.settings["mesh"])}
    values_back |= {FIELD.get(name, name): value for name, value in {**read.settings, **named}.items() if name in TAKEN}
    back = strategy_of_values(values_back)
    return back, strategy_of_values(values_of_strategy(strategy_of_values(nearest)))


def comparable(strategy: Strategy, *, job_optimizer: bool) -> Strategy:
    """Without the optimizer where it is the job's, and with fused kernels where none are named: that is what both mean."""
    values = values_of_strategy(strategy)
    if job_optimizer:
        values |= {"optimizer": None, "optimizer_kernels": None}
    if values["optimizer_kernels"] == "fused":
        values["optimizer_kernels"] = None
    if values["optimizer"] in ("adafactor", "muon") and values["optimizer_kernels"] == "for-loop":
        values["optimizer_kernels"] = None
    return strategy_of_values(values)


@pytest.mark.parametrize("name", TARGETS)
def test_every_field_has_a_row(name: str):
    covered = [field for row in target_of(name).rows for field in row.fields]
    assert set(covered) == set(FIELDS), "a field of Strategy, HostSettings or a plan has no row in the target's table"


@pytest.mark.parametrize("name", TARGETS)
def test_every_key_of_a_table_is_one_of_the_peer(name: str):
    target = target_of(name)
    keys = {key for row in target.rows for key in row.own_keys()} | set(target.fixed) | set(target.world(DeviceSet(2, 1, True)))
    keys |= {target.global_batch} - {""}
    assert [key for key in sorted(keys) if not target.schema.names(key)] == []
    for pattern in (*target.ignored, *target.of_the_model, *target.refused):
        assert pattern == target.comment or matches_some(pattern, target), f"{pattern} matches no key of {target.peer}"


def matches_some(pattern: str, target: ExportTarget) -> bool:
    from fnmatch import fnmatchcase

    return any(fnmatchcase(key, pattern) or fnmatchcase(pattern, key) for key in target.schema.keys)


@pytest.mark.parametrize("name", TARGETS)
@given(seed=st.integers(0, 2**32), steps=st.none() | st.integers(1, 10**6))
@settings(max_examples=100, deadline=None)
def test_a_file_reads_back_as_the_strategy_it_was_written_from(name: str, seed: int, steps: int | None):
    target, strategy = target_of(name), drawn_strategy(seed)
    values, refusal = values_with(strategy, steps=steps), None
    try:
        back, nearest = read_back(target, values, strategy)
    except UnsupportedError as error:
        refusal = error
    if refusal is not None:
        assert target.title in refusal.what
        return
    job_optimizer = strategy.optimizer is None
    assert comparable(back, job_optimizer=job_optimizer) == comparable(nearest, job_optimizer=job_optimizer)


@pytest.mark.parametrize("name", TARGETS)
def test_a_plain_training_is_said(name: str):
    strategy = Strategy(precision="amp-bf16", micro_batch=4, accumulation=2, mesh=Mesh(dp_shard=8), optimizer="adamw")
    back, nearest = read_back(target_of(name), values_with(strategy, steps=100), strategy)
    assert (back.mesh, back.precision, back.global_batch) == (strategy.mesh, "amp-bf16", strategy.global_batch)
    assert back.but(parallelism=Parallelism()) == nearest.but(parallelism=Parallelism())


@pytest.mark.parametrize("name", TARGETS)
def test_what_a_target_cannot_have_is_refused_by_name(name: str):
    target = target_of(name)
    never = [row for row in target.rows if isinstance(row, Never) and row.field != "mode"]
    for row in never:
        other = {"offload": "optimizer", "context": "ring", "pipeline_schedule": "gpipe", "shard": "optimizer"}.get(row.field)
        value = other or (2 if isinstance(defaults()[row.field], int) and not isinstance(defaults()[row.field], bool) else True)
        with pytest.raises(UnsupportedError, match=row.field) as error:
            keys_of_plan(target, {**defaults(), row.field: value}, DeviceSet(2))
        assert target.title in error.value.what


def test_an_unknown_target_is_named_with_the_nearest():
    with pytest.raises(UnknownNameError) as error:
        target_of("acelerate")
    assert error.value.ways_out[0].startswith("nearest: accelerate")


# Files of others.
DEEPSPEED = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}


def read(data: object, devices: int = 8, kind: str | None = None, **named: object) -> ConfigRead:
    text = data if isinstance(data, str) else json.dumps(data)
    return read_config(text, file="config", world=DeviceSet(devices), kind=kind, named=named)


def test_a_common_deepspeed_file():
    config = read(
        {**DEEPSPEED, "train_batch_size": 64, "gradient_clipping": 1.0, "zero_optimization": {"stage": 3, "overlap_comm": True}}
    )
    assert config.settings["mesh"] == Mesh(dp_shard=8)
    assert (config.settings["micro_batch"], config.settings["accumulate"], config.settings["precision"]) == (4, 2, "amp-bf16")
    assert set(config.ignored) == {"gradient_clipping", "zero_optimization.overlap_comm"}
    assert any("fp32 copies" in text for _, text in config.differs)


@pytest.mark.parametrize(("stage", "shard"), [(1, "optimizer"), (2, "gradients")])
def test_zero_stages_are_what_is_sharded(stage: int, shard: str):
    assert read({**DEEPSPEED, "zero_optimization": {"stage": stage}}).settings["shard"] == shard


def test_zero_on_one_device_splits_nothing_and_may_offload():
    offload = {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}}
    config = read({**DEEPSPEED, "zero_optimization": offload}, devices=1)
    assert config.settings["mesh"] == Mesh()
    assert config.settings["offload"] == "optimizer"


@pytest.mark.parametrize(
    ("data", "key", "near"),
    [
        ({**DEEPSPEED, "zero_optimisation": {"stage": 3}}, "zero_optimisation.stage", "zero_optimization.stage"),
        ({**DEEPSPEED, "zero_optimization": {"stge": 3}}, "zero_optimization.stge", "zero_optimization.stage"),
        ({"output_dir": "x", "gradient_acumulation_steps": 2}, "gradient_acumulation_steps", "gradient_accumulation_steps"),
        (
            {"distributed_type": "FSDP", "fsdp_config": {"fsdp_reshard_after_foward": True}},
            "fsdp_config.fsdp_reshard_after_foward",
            "fsdp_config.fsdp_reshard_after_forward",
        ),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest(data: dict[str, object], key: str, near: str):
    with pytest.raises(InputError) as error:
        read(data)
    assert repr(key) in error.value.what
    assert near in error.value.ways_out[0]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({**DEEPSPEED, "zero_optimization": {"stage": 3, "zero_quantized_weights": True}}, "ZeRO\\+\\+"),
        ({**DEEPSPEED, "compile": {"deepcompile": True}}, "DeepCompile"),
        ({"output_dir": "x", "use_liger_kernel": True}, "Liger"),
        ({"output_dir": "x", "deepspeed": "ds.json"}, "DeepSpeed's own file"),
        ({"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2, "fsdp_offload_params": True}}, "offload"),
        ({"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 2}}, "distributed_type"),
        ({**DEEPSPEED, "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, "nvme"),
        ({"output_dir": "x", "optim": "lomo"}, "lomo"),
    ],
)
def test_what_cannot_be_forecast_is_refused_by_name(data: dict[str, object], words: str):
    with pytest.raises((InputError, UnsupportedError), match=words):
        read(data)


def test_auto_is_filled_in_by_flags_or_asked_for():
    auto = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "train_batch_size": "auto",
        "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
        "bf16": {"enabled": "auto"},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
    }
    with pytest.raises(InputError, match="train_micro_batch_size_per_gpu is 'auto'") as error:
        read(auto)
    assert error.value.ways_out[0] == "name it: --micro-batch"
    config = read(auto, micro_batch=4, accumulate=2, precision="amp-bf16")
    assert config.settings["optimizer"] == "adamw"
    assert "micro_batch" not in config.settings  # the flag says it


def test_a_batch_that_does_not_multiply_is_refused():
    with pytest.raises(InputError, match="train_batch_size is 100, and micro-batches of 4 x 2 on 8"):
        read({**DEEPSPEED, "gradient_accumulation_steps": 2, "train_batch_size": 100})


def test_a_file_for_other_devices_is_refused():
    accelerate = {"distributed_type": "MULTI_GPU", "num_processes": 4, "mixed_precision": "bf16"}
    assert read(accelerate, devices=4).settings["mesh"] == Mesh(dp_replicate=4)
    with pytest.raises(InputError, match="num_processes is 4, and the devices of --on make it 8"):
        read(accelerate)


def test_training_arguments_have_the_trainers_own_values_where_keys_are_absent():
    config = read({"output_dir": "x", "bf16": True, "max_steps": 10, "fsdp": "full_shard auto_wrap"})
    assert config.settings["micro_batch"] == 8
    assert config.settings["samples"] == 10 * 8 * 8
    assert config.settings["mesh"] == Mesh(dp_shard=8)
    assert config.settings["optimizer"] == "adamw"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"bf16": {"enabled": NaN}}',
        '{"bf16": {"enabled": true}, "bf16": {"enabled": false}}',
        '{"train_batch_size": 1' + "0" * 5000 + "}",
        '{"a":' * 5000 + "1" + "}" * 5000,
        "distributed_type: !!python/object/apply:os.system [id]",
        "a: &a [x]\nb: *a\ndistributed_type: FSDP",
        "distributed_type: NO\ndistributed_type: FSDP",
        "- " * 3000,
        "\x00",
        "\ud800",
        "1: 2\ndistributed_type: NO",
    ],
)
@pytest.mark.parametrize("kind", [None, *TARGETS])
def test_damaged_and_malicious_files_are_one_error(text: str, kind: str | None):
    with pytest.raises((FileFormatError, InputError)):
        read(text, kind=kind)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda part: (
            st.dictionaries(
                st.sampled_from(
                    [
                        "zero_optimization",
                        "stage",
                        "bf16",
                        "enabled",
                        "output_dir",
                        "fsdp_config",
                        "distributed_type",
                        "optimizer",
                        "type",
                        "x",
                    ]
                ),
                part,
            )
            | st.lists(part, max_size=2)
        ),
        max_leaves=8,
    ),
    st.sampled_from([None, *TARGETS]),
)
@settings(max_examples=150, deadline=None)
def test_any_file_is_read_or_refused(data: object, kind: str | None):
    with suppress(FileFormatError, InputError, UnsupportedError):
        read(data, kind=kind)


def test_all_targets_recognise_only_their_own_files():
    strategy = Strategy(precision="amp-bf16", micro_batch=2, optimizer="adamw")
    for target in all_targets():
        keys, _, _ = keys_of_plan(target, values_with(strategy), DeviceSet(1))
        assert read(target.write(keys, HEADING), devices=1).target == target.name


def test_names_with_quotes_and_newlines_stay_inside_comments_and_strings():
    heading = Heading('a"\n# b\n$(touch x)', "0" * 64, "0.1.0", "peer 1", "run 'it'\nnow", ("a\nb: c",))
    strategy = Strategy(precision="amp-bf16", micro_batch=2, optimizer="adamw")
    for target in all_targets():
        keys, _, _ = keys_of_plan(target, values_with(strategy), DeviceSet(1))
        config = read(target.write(keys, heading), devices=1)
        assert config.settings["precision"] == "amp-bf16"


def test_the_shipped_keys_name_their_peer_and_version():
    for path in sorted((Path(__file__).parents[2] / "src/gpuwise/export/data").glob("*.json")):
        data = json.loads(path.read_text())
        assert set(data) == {"peer", "version", "made_by", "whole", "keys"}
        assert path.stem in (*TARGETS, *SCRIPTS)


def test_a_plan_for_this_machines_cpu_is_exported_for_a_cpu():
    plan = replace(sample_plan(cpu=True), device="here-cpu")
    assert "use_cpu: true\n" in api.export(plan, to="accelerate").text
