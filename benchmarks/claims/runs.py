"""Claims of whole trainings: ResNet-50 on ImageNet, GPT-3."""

from __future__ import annotations

from benchmarks.claims.claim import Call, Claim, Published, Row, forecast, share, unit
from benchmarks.claims.devices import interval, throughput
from benchmarks.claims.jobs import gpt3
from benchmarks.claims.kernels import mfu

IMAGES = 1_281_167  # ILSVRC 2012, training set
EPOCHS = 90
DEEP_LEARNING_EXAMPLES = "NVIDIA DeepLearningExamples, ResNet-50 v1.5 for PyTorch, NGC 21.03"
# Brown et al. 2020: 175 billion parameters, 300 billion tokens.
GPT3_PARAMETERS, GPT3_TOKENS = 175e9, 300e9
MEGATRON = "Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters (arXiv 2104.04473), section 5.1"

hours = unit("h", 3600)
minutes = unit("minutes", 60)
days = unit("days", 86_400)
RATE = unit("images/s")


def _resnet(key: str, chip: str, precision: str, images: int, *, last: bool = True) -> tuple[Row, ...]:
    layout = {"channels_last": True} if precision == "amp-fp16" and last else {}
    call = forecast("resnet50", chip, slow=bool(layout), precision=precision, micro_batch=images, **layout)
    return (
        Row(key, f"{chip}, {precision}, {images} images{', channels last' * bool(layout)}", call, throughput, RATE),
        Row(f"{key}_epoch", "one epoch of 1,281,167 images", (key,), lambda rate: IMAGES / rate, minutes),
        Row(f"{key}_90", "90 epochs", (f"{key}_epoch",), lambda epoch: EPOCHS * epoch, hours),
    )


A100_29H = Claim(
    name="resnet50-29-h",
    said="ResNet-50 on ImageNet (90 epochs) takes about 29 hours on one A100.",
    verdict="wrong",
    numbers="A100: {a100_90} in mixed precision, {tf32_90} in TF32; V100: {v100_90}",
    conditions="29 hours is the figure NVIDIA prints for one V100; of the A100, on the same page, it prints 14, and 36 in "
    "TF32 (forecast {tf32_90}). It becomes 29 hours where the input pipeline feeds no more than {fed}, as where decoding "
    "JPEGs is the limit.",
    rows=(
        *_resnet("a100", "a100-80gb-sxm", "amp-fp16", 256),
        *_resnet("tf32", "a100-80gb-sxm", "tf32", 256),
        *_resnet("v100", "v100-sxm2-16gb", "amp-fp16", 256),
        *(
            Row(
                f"{key}_off",
                f"{what}: forecast over published",
                (key,),
                lambda rate, measured=measured: rate / measured,
                share,
                (0.75, 1.25),
            )
            for key, what, measured in (
                ("a100", "A100, mixed precision", 2470),
                ("tf32", "A100, TF32", 938),
                ("v100", "V100, mixed precision", 1200),
            )
        ),
        Row(
            "fed",
            "images a second that make 29 hours",
            "90 × 1281167 / (29 × 3600)",
            lambda: EPOCHS * IMAGES / (29 * 3600),
            unit("images/s"),
        ),
    ),
    published=(
        Published(
            "one A100, 90 epochs, mixed precision; TF32",
            "about 14 h (2,470 images/s); about 36 h (938)",
            DEEP_LEARNING_EXAMPLES,
            "2021",
        ),
        Published(
            "one V100 16 GB, 90 epochs, mixed precision; fp32",
            "about 29 h (1,200 images/s); about 92 h (367)",
            DEEP_LEARNING_EXAMPLES,
            "2021",
        ),
    ),
    note="The forecasts are of the steps alone. In mixed precision they are slower than NVIDIA's tuned container ({a100_off} "
    "of its rate on the A100, {v100_off} on the V100), in TF32 faster ({tf32_off}).",
)

V100_EPOCH = Claim(
    name="v100-epoch",
    said="One epoch of ResNet-50 on ImageNet takes 30 minutes on a V100.",
    verdict="right under conditions",
    numbers="{v100_epoch} in mixed precision (channels first: {first_epoch}), {fp32_epoch} in fp32",
    conditions="It lies between the two: about 20 minutes with tensor cores, an hour without. 30 minutes ({claimed}) is "
    "about what mixed precision in PyTorch's default layout gives, channels first, or a V100 that waits for its data.",
    rows=(
        *_resnet("v100", "v100-sxm2-16gb", "amp-fp16", 256),
        *_resnet("first", "v100-sxm2-16gb", "amp-fp16", 256, last=False),
        *_resnet("fp32", "v100-sxm2-16gb", "fp32", 128),
        Row("claimed", "30 minutes an epoch", "1281167 / 1800", lambda: IMAGES / 1800, unit("images/s")),
    ),
    published=(
        Published(
            "one V100 16 GB, mixed precision; fp32",
            "1,200 and 367 images/s: 17.8 and 58 minutes an epoch",
            DEEP_LEARNING_EXAMPLES,
            "2021",
        ),
    ),
)


def _trained_s(tokens_per_s: float) -> float:
    return GPT3_TOKENS / tokens_per_s


def _sharded(sequences: int) -> tuple[Row, ...]:
    call = forecast(
        gpt3,
        "a100-80gb-sxm:8x128",
        slow=True,
        mesh="dp_shard=1024",
        micro_batch=sequences,
        precision="amp-bf16",
        recompute="full",
    )
    what = f"1,024 A100 in 128 machines, sharded (FSDP), {sequences} sequence{'s' * (sequences > 1)} a GPU"
    return (
        Row(f"rate_{sequences}", what, call, throughput, unit("tokens/s")),
        Row(
            f"days_{sequences}",
            "300 billion tokens at that rate",
            (f"rate_{sequences}",),
            _trained_s,
            days,
            (20 * 86_400, 90 * 86_400),
        ),
        Row(f"mfu_{sequences}", "operations of the model over the peak", call, mfu, share),
        *interval(f"rate_{sequences}", "time of that step", call),
    )


GPT3_34_DAYS = Claim(
    name="gpt3-34-days",
    said="GPT-3 (175B) trains in 34 days on 1,024 A100.",
    verdict="right under conditions",
    numbers="{formula} by the published formula at 140 TFLOP/s a GPU; gpuwise, sharded over a cloud's links: {days_1} or "
    "{days_2}",
    conditions="It is an estimate from a measured rate, for 300 billion tokens, with tensor and pipeline parallelism on "
    "machines joined by eight InfiniBand ports each, and nothing ever failing. gpuwise does not forecast tensor and pipeline "
    "parallelism; sharded over the 400 Gbit/s of a cloud machine it depends on the batch: communication is most of a step of "
    "one sequence a GPU. At today's price on demand 34 days cost {price}.",
    rows=(
        Row(
            "formula",
            "8 × tokens × parameters / (GPUs × rate)",
            "8 × 300e9 × 175e9 / (1024 × 140e12)",
            lambda: 8 * GPT3_TOKENS * GPT3_PARAMETERS / (1024 * 140e12),
            days,
            (33 * 86_400, 35 * 86_400),
        ),
        Row("published_share", "140 TFLOP/s of 312, with recomputed operations", "140 / 312", lambda: 140 / 312, share),
        Row(
            "published_mfu", "of the model's own operations (6 of the 8)", "140 × 6 / 8 / 312", lambda: 140 * 6 / 8 / 312, share
        ),
        *_sharded(1),
        *_sharded(2),
        Row(
            "price",
            "1,024 A100 on demand (AWS p4de.24xlarge) for as long as the formula says",
            Call("api.offers", "a100-80gb-sxm provider=aws"),
            lambda offers: 24 * 33.9 * 1024 * min(o.usd_per_device_hour for o in offers if o.terms == "on-demand"),
            unit("million dollars", 1e6),
        ),
    ),
    published=(
        Published(
            "GPT-3 175B, 300 billion tokens, 1,024 A100, batch 1,536",
            "34 days, at 140 TFLOP/s a GPU",
            MEGATRON,
            "2021",
            checked=False,
        ),
    ),
    note="The interval of the forecast of one sequence a GPU is {rate_1_low} to {rate_1_high} of the time. Two sequences a "
    "GPU is a batch of 2,048, above GPT-3's 1,536.",
)

CLAIMS = (A100_29H, V100_EPOCH, GPT3_34_DAYS)
