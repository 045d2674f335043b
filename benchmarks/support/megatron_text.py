"""The words of docs/accuracy-megatron.md."""

from __future__ import annotations

PAGE = """# Accuracy: tensor, pipeline and data parallelism

What gpuwise forecasts for published runs of Megatron-LM and Megatron-DeepSpeed, next to the step times that were measured.
`python -m benchmarks.megatron --reference FOLDER --cache FOLDER --write` writes this page. Error:
|forecast / measured - 1|. Bias: the median of forecast over measured, less one. Inside: share of the rows inside the
forecast's 90 % interval.

{groups}

- **Megatron paper**: GPT of 22B to 1T parameters on 8 to 512 A100s, with full recompute, and with selective recompute and
  sequence parallelism (Korthikanti et al. 2022, arXiv:2205.05198, table 5). Calculon: 3.65 % mean, 8.87 % worst, fitted
  there.
- **several machines**: GPT of 3.6B to 175B on 64 to 512 A100s (VIA-Research/vTrain, validation data). vTrain: 14.7 % mean.
- **one machine**: GPT of 0.2B to 1.3B on 2 to 8 A100s (the same source), most of them bound by launches. vTrain with a real
  A100: 8.4 % mean; Calculon: 39 %. One thing is fitted, the host's time for an operation under Megatron-DeepSpeed, on
  models that are not kept out ({known}). Models are kept out by checksum of their shape.

- **bigscience**: GPT of 181B on 384 A100s of Jean Zay, the second iteration of short runs (bigscience-workshop/bigscience,
  train/tr11-176B-ml/chronicles-prequel.md). The same row was measured 7 % apart from one day to the next.

No fit saw the groups but **one machine**. Memory, published for bigscience alone: {memory}.

## What is assumed

The model is plain PyTorch, recorded on one device. Ranks are composed from that, as for any job. Megatron is followed in
this:

- Attention is products, softmax and dropout of 0.1; its scale, mask and softmax are one kernel, and so are bias, dropout
  and the sum with the residual. Layer norms, the loss and the update stream their bytes once.
- Full recompute is of whole blocks, selective recompute of attention's products and softmax alone.
- Half precision is forecast as bf16, which is what gpuwise has for whole models; most of the runs were in fp16, which takes
  the same units. Parameters and gradients have 16 bits, Adam updates fp32 copies: 18 bytes a parameter. Vocabularies are
  padded to a multiple of 128 times tp.
- Stages have equally many blocks. The first and the last add up the gradient of the tied embedding.
- Replicas add up their gradients once a step, after backward, beside nothing.
- Megatron-LM of 2022 (the paper) sends a part of an activation from each tensor-parallel rank, and sums what layers split
  by columns send back while the gradients of their weights are computed.
- Machines of the paper have eight HDR ports, those of vTrain four, those of Jean Zay four of Omni-Path. bigscience shares the
  state of the optimizer among replicas (ZeRO stage 1).

## What is known to be off

- **Long trainings on an A100.** Tables of kernels time single products of numbers that need little power: 8,192 cubed at
  294 TFLOP/s, where random numbers reach 257 on the same board (Horace He, thonking.ai, 2024). All large models are
  forecast too fast; that may be why.
- **bigscience**: each row is one iteration, and they fluctuate; why all of them are slower than forecast is not known.
- **Two and four tensor-parallel ranks on 512 GPUs** with eight stages and more took up to twice the time of eight such
  ranks. Nothing that is modelled explains it; Calculon is as far off there.

## By devices

{by_devices}
"""
