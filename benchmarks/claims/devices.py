"""Claims of one device against another: GPU and CPU, TPU and both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.claims.claim import Call, Claim, Published, Row, forecast, seconds, share, times, unit

SERVER, DESKTOP = "epyc-9654", "i9-10940x"  # 96 cores of 2022; 14 cores of 2019, whose steps were measured
DEVICES = {
    "server": SERVER,
    "desktop": DESKTOP,
    "t4": "t4",
    "v100": "v100-sxm2-16gb",
    "rtx": "rtx-4090",
    "a100": "a100-80gb-sxm",
    "h100": "h100-80gb-sxm",
}
CNN_BENCHMARKS = "jcjohnson/cnn-benchmarks, README (commit 0367b1f): forward and backward of ResNet-50, 16 images"
MLP_ROWS, MLP_BATCH = 10_000, 32


def step_on(device: str, job: str, **given: Any) -> Call:
    """A step as it is usually run there: mixed precision on GPUs, fp32 on CPUs."""
    gpu = device not in (SERVER, DESKTOP)
    images = {"channels_last": True} if job == "resnet50" and gpu else {}
    return forecast(job, device, slow=bool(images), precision="amp-fp16" if gpu else "fp32", **given, **images)


def throughput(answer: Any) -> float:
    return float(answer.throughput)


def ratio(first: float, second: float) -> float:
    return first / second


def interval(key: str, what: str, call: Call) -> tuple[Row, Row]:
    """The ends of the 90 % interval of a forecast's time, as shares of it."""

    def end(name: str) -> Callable[[Any], float]:
        def read(answer: Any) -> float:
            time = answer.step_time_s if hasattr(answer, "step_time_s") else answer.time_s
            return float(getattr(time, name) / time.value)

        return read

    return (
        Row(f"{key}_low", f"{what}: lower end of the interval", call, end("low"), share),
        Row(f"{key}_high", f"{what}: upper end", call, end("high"), share),
    )


def step_s(answer: Any) -> float:
    return float(answer.step_time_s.value)


def _against_cpu(
    job: str,
    what: str,
    counted: str,
    given: dict[str, Any],
    others: dict[str, tuple[str, Call]],
    holds: dict[str, tuple[float, float]],
) -> tuple[Row, ...]:
    """Throughput on every device and of `others`, and the ratios `first_second` that are bounded."""
    named = {**{key: (device, step_on(device, job, **given)) for key, device in DEVICES.items()}, **others}
    rows = [Row(key, f"{what}, {words}", call, throughput, unit(f"{counted}/s")) for key, (words, call) in named.items()]
    ratios = [
        Row(key, f"{named[first][0]} against {named[second][0]}", (first, second), ratio, times, bounds)
        for key, bounds in holds.items()
        for first, second in [key.split("_")]
    ]
    return (*rows, *ratios, *interval("server", f"time on {SERVER}", named["server"][1]))


RESNET = Claim(
    name="resnet50-gpu-cpu",
    said="A GPU trains ResNet-50 10 to 100 times faster than a CPU.",
    verdict="right under conditions",
    numbers="{t4_server} (T4) to {h100_server} (H100) over a server CPU; {rtx_desktop} (RTX 4090) over a desktop's",
    conditions="Right for a large GPU in mixed precision against a desktop CPU, and for the best against a server's. An old "
    "or small GPU is only a few times faster than 96 modern cores (T4: {t4_server}), and fp32 takes most of the lead away: a "
    "V100 in fp32 leads by {fp32_server}.",
    rows=_against_cpu(
        "resnet50",
        "ResNet-50, 64 images a step",
        "images",
        {"micro_batch": 64},
        {"fp32": ("v100-sxm2-16gb, fp32", forecast("resnet50", "v100-sxm2-16gb", precision="fp32", micro_batch=64))},
        {
            "t4_server": (1, 5),
            "v100_server": (3, 10),
            "a100_server": (7, 20),
            "h100_server": (12, 40),
            "rtx_desktop": (15, 60),
            "fp32_server": (1, 4),
        },
    ),
    published=(
        Published(
            "GeForce GTX 1080 (cuDNN 5) against two Xeon E5-2630 v3, 32 threads, fp32",
            "153.9 against 6,627 ms: 43 times",
            CNN_BENCHMARKS,
            "2016",
        ),
        Published("ResNet-50 on one A100, mixed precision", "2,470 images/s", "NVIDIA DeepLearningExamples, NGC 21.03", "2021"),
        Published(
            "ResNet-50 on one V100, mixed precision; fp32",
            "1,200 and 367 images/s",
            "NVIDIA DeepLearningExamples, NGC 21.03",
            "2021",
        ),
    ),
    measured=("resnet50_step_1", "resnet50_step_4", "resnet50_step_8"),
    figure=("claims/speed-up.svg", "Speed-up of GPUs over a 96-core CPU, by model and batch"),
    note="Forecasts of CPUs rest on their datasheets here: the interval of the server's is {server_low} to {server_high} of "
    "the time, so every ratio is known to a factor of about two. Published A100 and V100 figures are above the forecasts at "
    "64 images: NVIDIA ran 256 in a tuned container.",
)

BERT = Claim(
    name="bert-gpu-cpu",
    said="A GPU fine-tunes BERT 10 to 100 times faster than a CPU.",
    verdict="right under conditions",
    numbers="{t4_server} (T4) to {h100_server} (H100) over a server CPU; {rtx_desktop} (RTX 4090) over a desktop's",
    conditions="Right from the V100 upwards, or against a desktop or laptop CPU. A T4 is only {t4_server} faster than 96 "
    "cores in fp32, and a CPU with units for bf16 products (Xeon, AMX) is itself {amx_server} faster than that one, on which "
    "PyTorch draws dropout's random numbers one after the other.",
    rows=_against_cpu(
        "bert-base",
        "BERT base, 32 sequences of 128",
        "tokens",
        {"micro_batch": 32, "seq_len": 128},
        {
            "amx": (
                "xeon-8480plus (56 cores), bf16",
                forecast("bert-base", "xeon-8480plus", precision="amp-bf16", micro_batch=32, seq_len=128),
            )
        },
        {
            "t4_server": (3, 9),
            "v100_server": (14, 28),
            "a100_server": (25, 60),
            "h100_server": (45, 110),
            "rtx_desktop": (22, 70),
            "amx_server": (4, 12),
        },
    ),
    published=(
        Published(
            "a text classifier fine-tuned on an RTX 3060 against the CPU of an Apple M2 Pro",
            "283 against 669 s: 2.4 times",
            "A. Tillo, github.com/tillo13/cpu_vs_gpu_training, one user's report",
            "",
        ),
        Published(
            "BERT base on one server CPU against one data-centre GPU, same step",
            "no pair of figures found",
            "",
            "",
            checked=False,
        ),
    ),
    measured=("bert_step_1", "bert_step_4"),
    note="The forecast of the i9-10940X rests on steps measured on one, that of the EPYC 9654 on its datasheet (interval "
    "{server_low} to {server_high} of the time).",
)

MLP = Claim(
    name="mlp-gpu-cpu",
    said="A GPU trains an MLP on 10,000 rows of 20 features 10 to 100 times faster than a CPU.",
    verdict="wrong",
    numbers="an epoch in batches of {batch}: {epoch_t4} on a T4, {epoch_h100} on an H100, {epoch_desktop} on a desktop CPU",
    conditions="So small a step is the time to launch its operations, on every device: an H100 is as fast as a T4, and both "
    "are at best {small} faster than a CPU, before the table is copied; two cores of the machine measured here do a step in "
    "about the time of a GPU. All 10,000 rows at once are {large} faster on a GPU, but that is an epoch of milliseconds on "
    "either.",
    rows=(
        Row("batch", "rows a step", str(MLP_BATCH), lambda: float(MLP_BATCH), lambda x: f"{x:.0f}"),
        *(
            Row(
                key,
                f"a step of {MLP_BATCH} rows, {device}",
                forecast("tabular-mlp", device, precision="fp32", micro_batch=MLP_BATCH),
                step_s,
                seconds,
            )
            for key, device in (("desktop", DESKTOP), ("t4", "t4"), ("h100", "h100-80gb-sxm"))
        ),
        *(
            Row(f"epoch_{key}", f"an epoch, {key}", (key,), lambda step: step * -(-MLP_ROWS // MLP_BATCH), seconds)
            for key in ("desktop", "t4", "h100")
        ),
        Row("small", f"T4 against {DESKTOP}, {MLP_BATCH} rows", ("desktop", "t4"), ratio, times, (0.3, 3)),
        *(
            Row(
                f"{key}_all",
                f"a step of 10,000 rows, {device}",
                forecast("tabular-mlp", device, precision="fp32", micro_batch=MLP_ROWS),
                step_s,
                seconds,
            )
            for key, device in (("desktop", DESKTOP), ("h100", "h100-80gb-sxm"))
        ),
        Row("large", f"H100 against {DESKTOP}, 10,000 rows", ("desktop_all", "h100_all"), ratio, times, (3, 15)),
    ),
    measured=("mlp_step_1", "mlp_step_32", "mlp_step_512", "mlp_step_10000"),
    note="The forecasts of GPUs are the time of a host to launch PyTorch's operations one by one. A CUDA graph or "
    "torch.compile takes much of it away; so does a CPU that does not wake all its cores for every operation.",
)

TPU = Claim(
    name="tpu-speed",
    said="A TPU is 5 to 50 times faster (than what people use).",
    verdict="right under conditions",
    numbers="TPU v4 against its contemporary A100: {v4_a100} (ResNet-50), {v4_a100_bert} (BERT); against 96 cores: {v4_cpu}",
    conditions="Right against CPUs, and for Google's own inference in 2015 against the K80 and Haswell. Against a GPU of its "
    "time a TPU chip is about as fast ({v6e_h100} to {v3_v100}); a pod is fast because it is large.",
    rows=(
        *(
            Row(
                key,
                f"ResNet-50, 64 images a step, {device}",
                forecast(
                    "resnet50", device, slow="channels_last" in given, precision=precision, **{"micro_batch": 64, **given}
                ),
                throughput,
                unit("images/s"),
            )
            for key, device, precision, given in (
                ("v3", "tpu-v3:2", "amp-bf16", {"micro_batch": 32}),
                ("v4", "tpu-v4", "amp-bf16", {}),
                ("v6e", "tpu-v6e", "amp-bf16", {}),
                ("v100", "v100-sxm2-16gb", "amp-fp16", {"channels_last": True}),
                ("a100", "a100-80gb-sxm", "amp-fp16", {"channels_last": True}),
                ("h100", "h100-80gb-sxm", "amp-fp16", {"channels_last": True}),
                ("cpu", SERVER, "fp32", {}),
            )
        ),
        *(
            Row(
                f"{key}_bert",
                f"BERT base, 32 sequences of 128, {device}",
                forecast("bert-base", device, precision=precision, micro_batch=32, seq_len=128),
                throughput,
                unit("tokens/s"),
            )
            for key, device, precision in (("v4", "tpu-v4", "amp-bf16"), ("a100", "a100-80gb-sxm", "amp-fp16"))
        ),
        *interval("v4", "ResNet-50 on tpu-v4, time", forecast("resnet50", "tpu-v4", precision="amp-bf16", micro_batch=64)),
        Row(
            "v3_v100",
            "a TPU v3 chip, two devices (2018), against V100 (2017), ResNet-50",
            ("v3", "v100"),
            ratio,
            times,
            (0.7, 3),
        ),
        Row("v4_a100", "TPU v4 against A100 (both 2020), ResNet-50", ("v4", "a100"), ratio, times, (0.7, 3)),
        Row("v4_a100_bert", "the same, BERT", ("v4_bert", "a100_bert"), ratio, times, (0.7, 3)),
        Row("v6e_h100", "TPU v6e (2024) against H100 (2022), ResNet-50", ("v6e", "h100"), ratio, times, (0.5, 2)),
        Row("v4_cpu", "TPU v4 against the 96-core CPU, ResNet-50", ("v4", "cpu"), ratio, times, (5, 50)),
    ),
    published=(
        Published(
            "the first TPU against a K80 and a Haswell CPU, inference of Google's own models",
            "about 15 to 30 times",
            "Jouppi et al., In-Datacenter Performance Analysis of a Tensor Processing Unit (ISCA 2017), abstract",
            "2017",
        ),
        Published(
            "TPU v4 against A100, systems of the same size",
            "1.2 to 1.7 times",
            "Jouppi et al., TPU v4 (arXiv 2304.01433), abstract",
            "2023",
        ),
    ),
    note="Forecasts of TPUs rest on their datasheets: the interval of the v4's is {v4_low} to {v4_high} of the time.",
)

CLAIMS = (RESNET, BERT, MLP, TPU)
SWEEP: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "tabular-mlp": ((1, 32, 512, 10_000), {"precision": "fp32"}),
    "resnet50": ((1, 4, 16, 64, 256), {"precision": "amp-fp16", "channels_last": True}),
    "bert-base": ((1, 4, 16, 64, 256), {"precision": "amp-fp16", "seq_len": 128}),
}


def speed_ups() -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Job -> GPU -> (samples a step, speed-up over the server CPU at the same batch): what the figure draws."""
    found: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for job, (batches, given) in SWEEP.items():
        on_cpu = {**given, "precision": "fp32", "channels_last": False}
        for gpu in ("t4", "a100-80gb-sxm", "h100-80gb-sxm"):
            for n in batches:
                ours = throughput(forecast(job, gpu, micro_batch=n, **given).run())
                cpu = throughput(forecast(job, SERVER, micro_batch=n, **on_cpu).run())
                found.setdefault(job, {}).setdefault(gpu, []).append((n, ours / cpu))
    return found
