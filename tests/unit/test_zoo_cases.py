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


def test_steps_of_translation_are_of_the_buckets_that_fill_a_batch():
    from benchmarks.zoo.translation import buckets

    small, large = buckets(256), buckets(31_744)
    assert [sum(part.share for part in parts) for parts in (small, large)] == pytest.approx([1, 1])
    assert [part.size for part in small] == [(("seq_len", length),) for length in (19, 29, 39, 50)]
    assert len(large) == 3  # none of the longest sentences: there are not enough of them for a batch of all GPUs
    logged = 97_600 * 0.432 / 880  # word pieces a second, seconds a step, pairs
    assert sum(part.share * part.per_sample for part in small) == pytest.approx(logged, rel=0.02)


def test_a_mean_of_rates_is_the_rate_of_steps_one_after_the_other():
    from benchmarks.zoo.scores import mean_step_s

    rates = [100 * 2 / 0.5, 100 * 4 / 2.0]  # a hundred samples of 2 units in 0.5 s, and of 4 units in 2 s
    mean = sum(rates) / 2
    assert mean_step_s([(0.5, 0.5 * 2 / 3), (2.0, 0.5 * 4 / 3)]) == pytest.approx(100 * 3 / mean)


def test_the_run_whose_log_gave_the_buckets_is_no_test_of_them():
    run = {
        "source_repo": "lambdal/deeplearning-benchmark",
        "framework": "PyTorch",
        "model": "GNMT",
        "task": "train",
        "gpu": "A40-48GB",
        "precision": "amp-fp16",
        "batch_per_gpu": 880.0,
    }
    assert isinstance(result_of(**run, num_gpus=2), Unscored)
    assert isinstance(result_of(**run, num_gpus=4), Case)


def test_sums_over_sentences_take_the_host_as_long_as_an_operation_each():
    case = result_of(
        source_repo="lambdal/deeplearning-benchmark", framework="PyTorch", model="GNMT", task="train", batch_per_gpu=100.0
    )
    assert isinstance(case, Case)
    assert not case.data.prefetched
    assert case.data.samples_per_s is not None
    assert 5e-6 < 1 / case.data.samples_per_s < 5e-5
