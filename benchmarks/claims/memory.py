"""Claims of memory: what a step holds, and what frees it."""

from __future__ import annotations

from typing import Any

from benchmarks.claims.claim import Call, Claim, Published, Row, forecast, gibibytes, gigabytes, share, times, unit
from benchmarks.claims.devices import ratio, step_s
from benchmarks.claims.jobs import chain

A100_40 = "a100-40gb-sxm"
ZERO = "Rajbhandari et al., ZeRO (arXiv 1910.02054), figure 1"
RTX_4090_USABLE = 23.7 * 2**30  # what the driver leaves of 24 GiB
LLAMA_13B = {"micro_batch": 1, "seq_len": 2048, "recompute": "full"}


def peak(answer: Any) -> float:
    return float(answer.memory.peak_allocated_bytes)


def of_device(answer: Any) -> float:
    return float(answer.memory.device_bytes)


def category(name: str) -> Any:
    return lambda answer: float(answer.memory.by_category[name])


CHAIN_ROWS = 16_384
_DEPTHS = ((16, 4), (64, 8), (256, 16))  # layers and their root


def _chained(layers: int, segments: int) -> Call:
    return forecast(chain(layers, segments), "a100-80gb-sxm", slow=True, micro_batch=CHAIN_ROWS, precision="fp32")


_CHAINS = {(n, s): _chained(n, s) for n, root in _DEPTHS for s in (0, root)}

CHECKPOINTING = Claim(
    name="checkpointing",
    said="Gradient checkpointing needs O(√n) memory instead of O(n), for a third more compute.",
    verdict="right under conditions",
    numbers="256 equal layers: {act_256_0} of activations become {act_256_16}; the step takes {time_256} as long",
    conditions="Right with √n segments of equal layers: 16 times the layers need {growth} the memory, not 16 times. What "
    "libraries offer, a checkpoint at every block, is still O(n), with a smaller constant, and saves nothing where the "
    "optimizer step is the peak. The extra forward pass is a third of the operations; of the time it is {gpt2} for GPT-2 XL "
    "on an A100.",
    rows=(
        *(
            Row(
                f"act_{n}_{s}",
                f"{n} layers, {f'{s} segments' if s else 'no checkpoints'}: activations",
                call,
                category("activation"),
                gigabytes,
            )
            for (n, s), call in _CHAINS.items()
        ),
        Row(
            "act_256_256",
            "256 layers, a checkpoint at each: activations",
            _chained(256, 256),
            category("activation"),
            gigabytes,
        ),
        Row("growth", "memory of 256 over 16 layers, √n segments", ("act_256_16", "act_16_4"), ratio, times, (3.5, 5.5)),
        *(
            Row(
                f"step_{s}",
                f"256 layers, {f'{s} segments' if s else 'no checkpoints'}: step",
                _CHAINS[256, s],
                step_s,
                unit("ms", 1e-3),
            )
            for s in (0, 16)
        ),
        Row("time_256", "step with √n segments over without", ("step_16", "step_0"), ratio, times, (1.2, 1.4)),
        *(
            Row(
                f"xl_{recompute}",
                f"GPT-2 XL, 8 sequences, A100, recompute {recompute}: step",
                forecast("gpt2-xl", "a100-80gb-sxm", micro_batch=8, precision="bf16", recompute=recompute),
                step_s,
                unit("ms", 1e-3),
            )
            for recompute in ("none", "full")
        ),
        Row("gpt2", "GPT-2 XL, longer by", ("xl_full", "xl_none"), lambda a, b: a / b - 1, share, (0.15, 0.4)),
        *(
            Row(
                f"xl_{recompute}_peak",
                f"GPT-2 XL, recompute {recompute}: peak",
                forecast("gpt2-xl", "a100-80gb-sxm", micro_batch=8, precision="bf16", recompute=recompute),
                peak,
                gigabytes,
            )
            for recompute in ("none", "full")
        ),
    ),
    published=(
        Published(
            "O(√n) memory for one extra forward pass a mini-batch",
            "a residual network of 1,000 layers: 48 to 7 GB for 30 % more time",
            "Chen et al., Training Deep Nets with Sublinear Memory Cost (arXiv 1604.06174), abstract",
            "2016",
        ),
    ),
    measured=(
        "checkpoint_none_s",
        "checkpoint_root_s",
        "checkpoint_each_s",
        "checkpoint_none_bytes",
        "checkpoint_root_bytes",
        "checkpoint_each_bytes",
    ),
)


def _halves(key: str, job: str, what: str, holds: tuple[float, float], **given: Any) -> tuple[Row, ...]:
    calls = {name: forecast(job, A100_40, precision=full, **given) for name, full in (("fp32", "fp32"), ("amp", "amp-bf16"))}
    return (
        *(
            Row(f"{key}_{name}", f"{what}, {name}: activations", call, category("activation"), gigabytes)
            for name, call in calls.items()
        ),
        Row(f"{key}_act", f"{what}: activations left", (f"{key}_amp", f"{key}_fp32"), ratio, share, holds),
        *(Row(f"{key}_{name}_peak", f"{what}, {name}: peak", call, peak, gigabytes) for name, call in calls.items()),
        Row(f"{key}_peak", f"{what}: peak left", (f"{key}_amp_peak", f"{key}_fp32_peak"), ratio, share),
    )


HALVES = Claim(
    name="mixed-precision-memory",
    said="Mixed precision halves activation memory (or all memory).",
    verdict="right under conditions",
    numbers="activations left: {resnet_act} of ResNet-50's, {gpt2_act} of GPT-2's, {bert_act} of BERT's; peaks "
    "{resnet_peak}, {gpt2_peak}, {bert_peak}",
    conditions="Right for networks of convolutions. Under autocast a transformer keeps what its norms, losses and residual "
    "sums take in fp32, and 16-bit copies of its weights come on top; parameters, gradients and Adam's states stay in fp32. "
    "Even in pure bf16 GPT-2's peak is still {gpt2_pure_peak}, for its loss is computed in fp32.",
    rows=(
        *_halves("resnet", "resnet50", "ResNet-50, 128 images", (0.45, 0.6), micro_batch=128),
        *_halves("gpt2", "gpt2", "GPT-2, 8 sequences", (0.6, 0.85), micro_batch=8),
        Row(
            "gpt2_pure",
            "GPT-2, 8 sequences, pure bf16: peak",
            forecast("gpt2", A100_40, precision="bf16", micro_batch=8),
            peak,
            gigabytes,
        ),
        Row(
            "gpt2_pure_peak",
            "GPT-2, 8 sequences, pure bf16: peak left",
            ("gpt2_pure", "gpt2_fp32_peak"),
            ratio,
            share,
            (0.55, 0.9),
        ),
        *_halves("bert", "bert-base", "BERT base, 32 sequences of 128", (0.65, 0.9), micro_batch=32, seq_len=128),
    ),
    published=(
        Published(
            "half-precision storage of weights, activations and gradients",
            "nearly halves memory requirements",
            "Micikevicius et al., Mixed Precision Training (arXiv 1710.03740), abstract",
            "2018",
            checked=False,
        ),
    ),
    measured=("autocast_gpt_fp32_bytes", "autocast_gpt_amp_bytes", "autocast_resnet_fp32_bytes", "autocast_resnet_amp_bytes"),
)

ADAM = Claim(
    name="adam-states",
    said="Adam keeps two states a parameter, so training takes 4 times the model (16 bytes a parameter).",
    verdict="right",
    numbers="Llama 2 7B: {adam_state} of Adam's states, {per} a parameter; the peak is {adam_peak}, {of_model} the weights "
    "in bf16",
    conditions="Two fp32 moments are 8 bytes, beside 4 of the parameter and 4 of its gradient: 16 bytes with autocast, 12 of "
    "them optimizer state in the older way of counting (with an fp32 copy of fp16 weights). Plain SGD keeps none; 8-bit Adam "
    "{eight}; pure bf16 makes the 16 bytes 8. Activations come on top.",
    rows=(
        *(
            Row(
                f"{name}_state",
                f"Llama 2 7B, {optimizer}: state",
                forecast(
                    "llama2-7b", "h200-141gb-sxm", precision="amp-bf16", micro_batch=1, recompute="full", optimizer=optimizer
                ),
                category("optimizer_state"),
                gigabytes,
            )
            for name, optimizer in (("sgd", "sgd"), ("momentum", "momentum"), ("adam", "adamw"), ("eight", "adamw-8bit"))
        ),
        Row(
            "per",
            "AdamW's state a parameter (6,738,415,616 parameters)",
            ("adam_state",),
            lambda s: s / 6_738_415_616,
            unit("bytes"),
            (7.9, 8.1),
        ),
        Row("eight", "8-bit AdamW's a parameter", ("eight_state",), lambda s: s / 6_738_415_616, unit("bytes"), (1.9, 2.2)),
        Row(
            "adam_peak",
            "AdamW: peak, everything checkpointed",
            forecast("llama2-7b", "h200-141gb-sxm", precision="amp-bf16", micro_batch=1, recompute="full", optimizer="adamw"),
            peak,
            gigabytes,
        ),
        Row("of_model", "peak over 2 bytes a parameter", ("adam_peak",), lambda p: p / (2 * 6_738_415_616), times, (7.5, 9)),
    ),
    published=(
        Published(
            "mixed-precision Adam",
            "16 bytes a parameter: 2 + 2 + 12",
            ZERO.replace(", figure 1", ", section 3.1"),
            "2019",
            checked=False,
        ),
    ),
    measured=("state_sgd_bytes", "state_momentum_bytes", "state_adamw_bytes"),
)

ONE_PROMPT = forecast("llama2-7b", "rtx-4090", precision="bf16", micro_batch=1, seq_len=128, mode="infer")

SEVEN_B = Claim(
    name="7b-fp16",
    said="A 7B model in fp16 is 14 GB.",
    verdict="right",
    numbers="Llama 2 7B: {weights} of weights ({weights_gib}), {device} on the device for one short prompt",
    conditions="2 bytes a parameter, and '7B' has 6.74 billion. It fits a card of 16 GB with little left: each token of "
    "context takes another {kv} of keys and values, {kv_4096} at 4,096 tokens. Training it with Adam takes 8 times as much "
    "(above).",
    rows=(
        Row("weights", "weights", ONE_PROMPT, category("parameter"), gigabytes, (13.4e9, 14.1e9)),
        Row("weights_gib", "the same in GiB", ("weights",), lambda w: w, gibibytes),
        Row("device", "device memory, one prompt of 128 tokens", ONE_PROMPT, of_device, gibibytes),
        Row(
            "kv",
            "keys and values a token: 2 of 4,096 numbers in 32 layers",
            "2 × 32 × 4096 × 2 bytes",
            lambda: 2.0 * 32 * 4096 * 2,
            unit("MiB", 2**20),
        ),
        Row("kv_4096", "at 4,096 tokens", ("kv",), lambda x: 4096 * x, gibibytes),
    ),
)

THIRTEEN_B = Claim(
    name="13b-on-24-gb",
    said="You can fine-tune a 13B model on a 24 GB card.",
    verdict="right under conditions",
    numbers="Llama 2 13B at 2,048 tokens: {full} in bf16, {lora} with LoRA, {qlora} with QLoRA, of 24",
    conditions="Only with the weights in 4 bits (QLoRA) and checkpointing. LoRA on 16-bit weights does not fit: the frozen "
    "weights alone are 26 GB. Full fine-tuning with AdamW, even in pure bf16 and sharded, takes six such cards ({six} of "
    "each; {five} on five).",
    rows=(
        Row(
            "full",
            "all parameters, pure bf16, AdamW, full recomputation",
            forecast("llama2-13b", "rtx-4090", precision="bf16", **LLAMA_13B),
            of_device,
            gibibytes,
            (RTX_4090_USABLE, 1e12),
        ),
        Row(
            "lora",
            "LoRA of rank 16 on bf16 weights",
            forecast("llama2-13b", "rtx-4090", slow=True, precision="bf16", adapter="lora", **LLAMA_13B),
            of_device,
            gibibytes,
            (RTX_4090_USABLE, 40 * 2**30),
        ),
        Row(
            "qlora",
            "QLoRA of rank 16",
            forecast("llama2-13b", "rtx-4090", slow=True, precision="bf16", adapter="qlora", **LLAMA_13B),
            of_device,
            gibibytes,
            (6 * 2**30, 22 * 2**30),
        ),
        *(
            Row(
                key,
                f"all parameters, pure bf16, AdamW, sharded over {n} cards, each",
                forecast("llama2-13b", f"rtx-4090:{n}", precision="bf16", mesh=f"dp_shard={n}", **LLAMA_13B),
                of_device,
                gibibytes,
                holds,
            )
            for key, n, holds in (("five", 5, (RTX_4090_USABLE, 1e12)), ("six", 6, (0, RTX_4090_USABLE)))
        ),
    ),
    published=(
        Published("QLoRA: a 65B model", "on one GPU of 48 GB", "Dettmers et al., QLoRA (arXiv 2305.14314), abstract", "2023"),
    ),
)

SHARDED = Claim(
    name="zero",
    said="ZeRO reduces memory up to 8 times.",
    verdict="right under conditions",
    numbers="Llama 2 7B: {replicated} a GPU replicated, {eight} sharded over 8, {sixty_four} over 64: {gain_8} and {gain_64} "
    "less",
    conditions="8 times is stage 2 (states and gradients sharded) on very many GPUs: 16 bytes a parameter become 2. Stage 3, "
    "which is FSDP, has no such limit, it divides all 16 bytes by the number of GPUs; activations and one gathered block "
    "stay. On N GPUs no stage saves more than N times, so stage 2 on 8 GPUs saves 4.3.",
    rows=(
        *(
            Row(
                key,
                f"Llama 2 7B, autocast, AdamW, full recomputation, {mesh}: peak a GPU",
                forecast("llama2-7b", device, precision="amp-bf16", micro_batch=1, recompute="full", mesh=mesh),
                peak,
                gigabytes,
            )
            for key, device, mesh in (
                ("replicated", "a100-80gb-sxm:8", "dp_replicate=8"),
                ("eight", "a100-80gb-sxm:8", "dp_shard=8"),
                ("sixty_four", "a100-80gb-sxm:8x8", "dp_shard=64"),
            )
        ),
        Row("gain_8", "replicated over sharded by 8", ("replicated", "eight"), ratio, times, (5, 9)),
        Row("gain_64", "replicated over sharded by 64", ("replicated", "sixty_four"), ratio, times, (12, 40)),
        Row("stage_2", "stage 2 on 8 GPUs, by the paper's count", "16 / (2 + 14 / 8)", lambda: 16 / (2 + 14 / 8), times),
    ),
    published=(
        Published(
            "7.5B parameters on 64 GPUs: replicated, stage 1, 2, 3",
            "120, 31.4, 16.6 and 1.9 GB a GPU: 4, 8 and 64 times less",
            ZERO,
            "2019",
            checked=False,
        ),
    ),
    note="The paper counts model states only; gpuwise the whole peak. Replicated training (DDP) keeps its gradient buckets "
    "through the forward pass, where autocast holds 16-bit copies of the weights, too.",
)

RESNET_4GB = Claim(
    name="resnet50-4-gb",
    said="ResNet-50 trains with a batch of 32 in 4 GB.",
    verdict="right under conditions",
    numbers="fp32: {fp32} allocated, {fp32_device} on the device; mixed precision: {amp_device}",
    conditions="Just, in fp32 at 224 × 224 with momentum: a GTX 980 has 3.95 GiB for it, where no display takes from them. "
    "Mixed precision saves memory there too (no time: it has no tensor cores) and leaves room for 64 images "
    "({twice_device}).",
    rows=(
        *(
            Row(
                f"{key}{suffix}",
                f"{images} images, {precision}, GTX 980: {what}",
                forecast("resnet50", "gtx-980", precision=precision, micro_batch=images),
                read,
                text,
                holds,
            )
            for key, precision, images in (("fp32", "fp32", 32), ("amp", "amp-fp16", 32), ("twice", "amp-fp16", 64))
            for suffix, what, read, text, holds in (
                ("", "peak allocated", peak, gigabytes, (0, 4e9)),
                ("_device", "reserved, with PyTorch's context", of_device, gibibytes, (0, 3.95 * 2**30)),
            )
        ),
    ),
)

CLAIMS = (CHECKPOINTING, HALVES, ADAM, SEVEN_B, THIRTEEN_B, SHARDED, RESNET_4GB)
