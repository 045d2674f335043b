"""The config of a Hugging Face model, read and checked before anything is built from it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Protocol

from gpuwise.errors import JobError
from gpuwise.plain_files import LARGEST_WHOLE

# Each of these is a module, or a name in a table: the largest models have some hundreds, and building a million takes hours.
_COUNTED = re.compile(r"((num|n)_(\w+_)?|(en|de)coder_)(layers?|blocks|experts|labels)")
MOST_COUNTED = 100_000
_WHOLE = ("vocab_size", "n_positions", "max_position_embeddings")  # what example batches are made by
_SIZE = re.compile(
    r"(vocab|hidden|intermediate|image|patch)_size|n_embd|n_inner|d_model|d_ff|d_kv|num_channels|"
    r"max_position_embeddings|n_positions|(num|n)_(\w+_)?heads?"
)
_MASKS = ("mask_time_prob", "mask_feature_prob")
_DROPS = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop")


class HfConfig(Protocol):
    """The attributes of a transformers config that every model has and a job reads."""

    architectures: list[str] | None
    model_type: str
    num_labels: int
    use_cache: bool
    vocab_size: int

    def get_text_config(self) -> HfConfig: ...


def read_config(transformers: ModuleType, reference: str) -> HfConfig:
    """The config of a local folder or of a hub id, as transformers has it. Nothing of the repository is executed.

    Raises JobError where there is none, or where it says something that no model is made of, naming the key.
    """
    path = Path(reference).expanduser()
    local = os.path.exists(path) or reference.startswith((".", "/", "~"))
    ways = [
        f"name the folder that holds config.json: hf:{path.parent}"
        if os.path.isfile(path)
        else "name a folder that holds a config.json, as save_pretrained writes it"
    ]
    if local and not os.path.isfile(path / "config.json"):
        raise JobError(f"there is no {path / 'config.json'}.", ways)
    where = str(path) if local else reference
    try:
        raw, _ = transformers.PretrainedConfig.get_config_dict(where)
    except Exception as error:  # of a network, a file, an archive, a text that is no JSON
        reason = str(error).strip().split("\n")[0]
        if local:
            raise JobError(f"cannot read {path / 'config.json'}: {reason}", ways) from error
        raise JobError(
            f"cannot get the config of {reference!r} from the Hugging Face hub: {reason}",
            [
                "without a network: download its config.json elsewhere and name the folder, hf:./folder",
                "check the id on https://huggingface.co/models",
            ],
        ) from error
    if problem := _problem(raw):
        raise JobError(f"the config of hf:{reference} cannot be built: {problem}.", ["correct it in its config.json"])
    try:
        config: HfConfig = transformers.AutoConfig.from_pretrained(where, trust_remote_code=False)
        return config
    except Exception as error:  # each class of configs checks its fields in its own way
        # "Validation error for field 'n_layer':\n    TypeError: Field 'n_layer' expected int, got str (value: 'twelve')"
        lines = [line.strip() for line in str(error).strip().split("\n")] or [type(error).__name__]
        reason = lines[1].partition(": ")[2] if lines[0].startswith("Validation error") and len(lines) > 1 else lines[0]
        raise JobError(
            f"cannot read the config of hf:{reference}: {reason or type(error).__name__}.",
            ["correct it in its config.json", "a newer transformers may know it"],
        ) from error


def quantized(config: HfConfig) -> tuple[str, str] | None:
    """The method that a config's weights are quantized by, and the format of `serve-plan --weights` that has its bytes, ""
    where none has; None for weights that are not quantized."""
    settings = getattr(config, "quantization_config", None)
    settings = settings if isinstance(settings, dict) else getattr(settings, "__dict__", {})
    method = settings.get("quant_method")
    if not method:
        return None
    method = str(getattr(method, "value", method))
    bits = settings.get("bits")
    weights = {"mxfp4": "mxfp4", "fp8": "fp8-block" if settings.get("weight_block_size") else "fp8", "fbgemm_fp8": "fp8"}
    weights |= {"awq": "int4", "gptq": "int4"} if bits == 4 else {"gptq": "int8"} if bits == 8 else {}
    weights |= {"bitsandbytes": "nf4" if settings.get("load_in_4bit") else "int8"}
    return method, weights.get(method, "")


def random_parts(config: HfConfig) -> dict[str, tuple[str, ...]]:
    """What a config has that makes the shapes of a training step random, by name: the keys that are to be 0 without it."""
    masks = getattr(config, "apply_spec_augment", True)  # where Data2Vec's has no such key, its model masks
    keys = {"SpecAugment": _MASKS if masks else (), "LayerDrop": _DROPS}
    return {name: those for name, of in keys.items() if (those := tuple(key for key in of if getattr(config, key, 0)))}


def leave_out_random_parts(config: HfConfig) -> None:
    """Makes a config's model without them, and without the parameter that stands for what SpecAugment masks."""
    for keys in random_parts(config).values():
        for key in keys:
            setattr(config, key, 0.0)


def _problem(raw: object) -> str:
    """The fault of a config's values, whatever its model; "" where there is none."""
    if not isinstance(raw, dict) or not raw:
        return "it holds no table"
    if not isinstance(raw.get("model_type", ""), str):
        return f"model_type must be a text, got {raw['model_type']!r}"
    architectures = raw.get("architectures")
    if architectures is not None and not (isinstance(architectures, list) and all(isinstance(a, str) for a in architectures)):
        return f"architectures must be a list of class names, got {architectures!r}"
    for key, value in _values(raw):
        name = key.rpartition(".")[2]
        if name in _WHOLE and (isinstance(value, bool) or not isinstance(value, int)):
            return f"{key} must be a whole number, got {value!r:.60}"
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if abs(value) > LARGEST_WHOLE and value == value and abs(value) != float("inf"):
            return f"{key} is larger than 64 bits hold"
        if value < 0 and (_SIZE.fullmatch(name) or _COUNTED.fullmatch(name)):
            return f"{key} is {value}, below zero"
        if value > MOST_COUNTED and _COUNTED.fullmatch(name):
            return f"{key} is {value:,}, over {MOST_COUNTED:,}"
    return ""


def _values(raw: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """The values that are set in a config and in nested configs, by path."""
    for key, value in raw.items():
        if isinstance(value, dict) and key not in _WHOLE:
            yield from _values(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value
