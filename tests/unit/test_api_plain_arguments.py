"""Verbs take the numbers and paths that a script or a notebook has at hand."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest

import gpuwise
from gpuwise import api
from gpuwise.api.plain_arguments import plain
from gpuwise.errors import InputError


def test_numpy_numbers_are_pythons() -> None:
    numpys = gpuwise.forecast("gpt2", on="h100-sxm", micro_batch=np.int64(8), seq_len=np.int32(256))
    assert numpys.to_dict() == gpuwise.forecast("gpt2", on="h100-sxm", micro_batch=8, seq_len=256).to_dict()
    with pytest.raises(InputError, match="micro-batch must be a whole number"):
        gpuwise.forecast("gpt2", on="h100-sxm", micro_batch=np.float32(8.5))


def test_a_path_names_a_job() -> None:
    path = Path(__file__).parents[2] / "examples"
    with pytest.raises(gpuwise.JobError, match="names a file but no job"):
        gpuwise.fit(path, on="h100-sxm")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [np.arange(3), [np.int64(1)], "gpt2", 1.5, None, True])
def test_anything_else_stays_as_it_is(value: object) -> None:
    assert plain(value) is value


@pytest.mark.parametrize("value", [np.bool_(True), np.float64(0.5), np.int8(3)])
def test_what_is_given_has_pythons_own_type(value: np.generic) -> None:
    assert type(plain(value)) in (bool, float, int)
    assert plain(value) == value


def test_verbs_keep_their_signature() -> None:
    assert list(inspect.signature(api.fit).parameters) == ["job", "on", "every_technique", "settings"]
    assert inspect.getdoc(api.plan)
