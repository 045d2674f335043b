"""The words of docs/accuracy-bridge.md."""

from __future__ import annotations

PAGE = """# Accuracy: Hopper and Blackwell, fp8 and fp4, mixtures of experts

What gpuwise forecasts for published runs of Megatron-Bridge on H100, B200, B300 and GB200, next to the step times that were
measured (NVIDIA-NeMo/Megatron-Bridge, docs/performance-summary.md and its archive, releases 25.09 to 26.08).
`python -m benchmarks.hopper_blackwell --reference FOLDER --cache FOLDER --write` writes this page. Nothing was fitted on these
rows. Error: |forecast / measured - 1|. Bias: the median of forecast over measured, less one. Inside: share of the rows inside
the forecast's 90 % interval.

{summary}

Newest: of each model, device and precision the runs of the newest release. The software gets faster: the same
configuration of {spread_of} took {spread} times as long in its slowest release as in its fastest.
gpuwise knows no releases.

{models}

{devices}

{precisions}

{releases}

## What is followed, and where it is from

The model is plain PyTorch: one tensor- and expert-parallel rank with all layers, recorded in bf16 in seconds. Stages, the
pipeline's schedule, attention over a divided sequence and the price are gpuwise's own. Megatron-Core and Transformer Engine are
followed in this:

- **fp8 and fp4** (Transformer Engine's guide to low precision): linear layers of blocks multiply quantized operands; routers,
  attention and the output layer stay in bf16. Quantizing is kernels of their own that move bytes: with a scale for a tensor
  the maximum is found first; Hopper and scales for blocks need a copy for each direction. Behind norms, norms do it.
- **Kernels**: cuDNN's attention; norms, loss, rotary positions, SwiGLU and permutations are one pass each; gradients of weights
  are added up inside products (gradient_accumulation_fusion); grouped products for experts.
- **Layers and stages**: embedding and output layer count as a layer each; interleaved stages as the table says (vp).
- **Tensor parallelism** with its sequence divided: operands are gathered in the product's format, beside the products where the
  recipe overlaps them (tp_comm_overlap; not in NVFP4).
- **Experts**: routing is balanced, as in the published runs. Tokens travel in bf16 by NCCL's all-to-all or, where the recipe
  takes a fused dispatcher, once to each rank, or across machines once to each machine, as fast as a ring: 90 and 61 GB/s over
  two and four machines of H100s, as deepseek-ai/DeepEP has measured (README.md). Over NVLink 5 it has measured 643 to 726; the
  forecast is 608.
- **Replicas** share the state of the optimizer; gradients are scattered beside the last backward pass, in 16 bits. Under
  Megatron FSDP they share parameters, too; activations that a recipe keeps in host memory travel beside the computation.
- **Machines**: NVLink joins 8 devices, 64 of a GB200 rack. Beyond, each device has a port of 400 Gbit/s, a B300 one of 800.

## What is known to be off

- **Mixtures at small micro-batches.** Runs of 25.09 to 26.02 on 8-GPU machines took up to three times the forecast; later
  releases of the same models caught up. What the host does for a layer of experts, which without CUDA graphs launches hundreds
  of kernels and waits for counts of tokens, is not in the trace.
- **NCCL's all-to-all across machines** (Qwen3 235B on H100s) is forecast too slow beside computation: the step is bound by
  communication, and gpuwise hides at most a share of the computation behind it.
- **cuDNN's attention backward of few heads**: published figures are of 64 and more heads over all samples. At 4,096 tokens an
  H100 is forecast to reach 483 TFLOP/s with 128 of them, and 360 with 32, as small micro-batches have.

## Without a forecast

{refused}

## By model, device and precision

{all}
"""
