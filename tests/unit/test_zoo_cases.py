"""Rows of published tables become cases of the zoo's models, or say why they do not; on made-up rows."""

from __future__ import annotations

import pytest

pd = pytest.importorskip("pandas")
torch = pytest.importorskip("torch")

from benchmarks.support.published_case import Case  # noqa: E402
from benchmarks.zoo.cases import read  # noqa: E402
from benchmarks.zoo.entry import Unscored  # noqa: E402

from gpuwise.strategy import Mesh  # noqa: E402

NOTHING = float("nan")
ROW = {
    "id": "dle-1",
    "source_repo": "NVIDIA/DeepLearningExamples",
    "source_path": "PyTorch/Recommendation/NCF/README.md#L1",
    "date_or_commit": "",
    "framework": "PyTorch",
    "task": "infer",
    "model": "NCF",
    "model_detail": NOTHING,
    "precision": "tf32",
    "gpu": "A100-80GB",
    "num_gpus": 1.0,
    "batch_per_gpu": 1024.0,
    "global_batch": NOTHING,
    "seq_len": NOTHING,
    "image_size": NOTHING,
    "compile_or_fused_notes": NOTHING,
    "throughput": 2048.0,
    "throughput_unit": "items/s",
    "step_time_s": NOTHING,
    "notes": NOTHING,
}


def result_of(**changes):
    (row,) = pd.DataFrame([{**ROW, **changes}]).itertuples()
    return read(row)


def test_inference_from_a_throughput():
    case = result_of()
    assert isinstance(case, Case)
    assert (case.job, case.chip_id, case.count, case.machines, case.seconds) == ("ncf", "a100-80gb-sxm", 1, 1, 0.5)
    assert (case.strategy.mode, case.strategy.precision, case.strategy.micro_batch) == ("infer", "tf32", 1024)
    assert case.strategy.mesh == Mesh()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"framework": "TensorFlow1"}, "TensorFlow1, not PyTorch"),
        ({"model": "Unheard of"}, "no model of it in the zoo"),
        ({"gpu": "Abacus"}, "Abacus is not in the catalog"),
        ({"precision": "int8"}, "precision int8"),
        ({"batch_per_gpu": NOTHING}, "batch of a GPU unknown"),
        ({"throughput": NOTHING}, "neither step time nor throughput"),
        ({"source_repo": "pytorch/torchtitan", "model": "Llama 3.1 8B"}, "see accuracy-several.md"),
    ],
)
def test_rows_without_a_forecast_say_why(changes, reason):
    assert result_of(**changes) == Unscored(reason)


def test_translation_counts_word_pieces_of_both_languages():
    case = result_of(
        source_repo="lambdal/deeplearning-benchmark",
        framework="PyTorch (NVIDIA DeepLearningExamples)",
        model="GNMT",
        task="train",
        precision="amp-fp16",
        num_gpus=2.0,
        batch_per_gpu=100.0,
        throughput=9400.0,
        throughput_unit="tokens/s",
    )
    assert isinstance(case, Case)
    assert (case.job, case.strategy.precision, case.seconds) == ("gnmt-fp16", "fp32", pytest.approx(1.0))
    assert case.strategy.mesh == Mesh(dp_replicate=2)


@pytest.mark.parametrize(("name", "count"), [("gnmt", 159_605_817), ("tft-electricity", None), ("dlrm", None)])
def test_jobs_of_the_zoo_build(name, count):
    from benchmarks.zoo.registry import build

    with torch.device("meta"):
        model = build(name, {"seq_len": 30}).model()
    parameters = sum(p.numel() for p in model.parameters())
    assert parameters == count if count else parameters > 0  # of GNMT: "Number of parameters" of its logs
