"""The words of docs/accuracy-megatron.md."""

from __future__ import annotations

PAGE = """# Accuracy: tensor, pipeline and data parallelism

What gpuwise forecasts for published runs of Megatron-LM and Megatron-DeepSpeed, next to the step times that were measured.
`python -m benchmarks.megatron --reference FOLDER --cache FOLDER --write` writes this page. Error:
|forecast / measured - 1|. Bias: the median of forecast over measured, less one. Inside: share of the rows inside the
forecast's 90 % interval.

{groups}

- **Megatron paper**: GPT of 22B to 1T parameters on 8 to 512 A100s, with full recompute, and with selective recompute and
  sequence parallelism (Korthikanti et al. 2022, arXiv:2205.05198, table 5). Calculon: 3.65 % mean, 8.87 % worst, fitted there.
- **several machines**: GPT of 3.6B to 175B on 64 to 512 A100s (VIA-Research/vTrain, validation data). vTrain: 14.7 % mean.
- **one machine**: GPT of 0.2B to 1.3B on 2 to 8 A100s (the same source), most of them bound by launches. These steps are
  composed, not measured: see below. Calculon: 39 %.
- **bigscience**: GPT of 177B to 203B on 384 A100s of Jean Zay, the second iteration of short runs
  (bigscience-workshop/bigscience, train/tr11-176B-ml/chronicles-prequel.md). The same row was measured 7 % apart from one day
  to the next.

Memory, published for bigscience alone, with the allocator replayed as in any forecast: {memory}. Most of them lack about two
bytes a parameter of the rank, for which no source was found.

## What one machine shows

These rows (data/ground_truth_single.csv) were taken for measured steps. They are not. Steps that differ in the number of
micro-batches lie on a line, {composed_lines} lines in all, and the slopes of those lie on lines in the number of layers, none
off by more than {off_us} µs; measured steps scatter by a thousand times that. More replicas add what vTrain's table of
all-reduces says, to the microsecond: 4 in place of 2 of the model 1024x12 take 839 µs longer, as the table's in-place calls of
its 487 MiB do, and above 1,024 MiB, where that table ends, 4 take less than 2. So the {composed_rows} rows are sums of the
traced times of {composed_layers} layers (a width, a tensor-parallel degree, a micro-batch), as vTrain's forecasts are
(src/predictor.py). They show what kernels and launches of one layer take on an A100, and no step of several GPUs; an error in
one trace is in all rows of that layer.

## What was fitted, and what was chosen

- Fitted, on models of **one machine** that are not kept out ({known}): three figures of the host, seconds for an operation in
  forward, in backward, and for a collective. `python -m benchmarks.megatron --reference FOLDER --cache FOLDER --fit` prints
  the grid and its errors; of the two best, 0.07 points apart, the one is taken whose operations of forward take what they
  take in other steps on A100s. What a checkpointed block adds is fitted to these rows, too (`python -m benchmarks.fit_host`).
  Models are kept out by checksum of their shape.
- Chosen, with the errors of these rows in view: what of Megatron's code is followed, below. Each assumption has a source in
  its code or its authors' notes, and none is a factor on time; but which sources were searched follows from which rows were
  off. One of two updates of DeepSpeed was chosen by the steps of one machine.
- Neither: no figure is fitted to the Megatron paper, to several machines or to bigscience.

## What is assumed

The model is plain PyTorch, recorded on one device. Ranks are composed from that, as for any job. Megatron is followed in this:

- Attention is products, softmax and dropout of 0.1; bias, dropout and the sum with the residual are one kernel. So are scale,
  mask and softmax, where a rank has a multiple of four score matrices; where not, they are PyTorch's own, in fp32. Layer
  norms, the loss and the update stream their bytes once.
- Full recompute is of whole blocks, selective recompute of attention's products and softmax alone.
- Half precision is forecast as bf16, which is what gpuwise has for whole models; most of the runs were in fp16, which takes
  the same units. Parameters and gradients have 16 bits, Adam updates fp32 copies. Vocabularies are padded to a multiple of 128
  times tp.
- The host waits for its device at each micro-batch, whose sizes it reads from it, and at each send between stages
  (torch.cuda.synchronize in Megatron-LM; assumed of DeepSpeed's engine). In between it runs ahead, and collectives of tensor
  parallelism wait in the same queue as kernels.
- Stages have equally many blocks. The first and the last add up the gradient of the tied embedding.
- Replicas add up their gradients once a step, after backward, beside nothing.
- Each tensor-parallel rank sends a part of an activation to the next stage, as Megatron-LM does unless
  --no-scatter-gather-tensors-in-pipeline is set, and DeepSpeed (is_pipe_partitioned); gathering the parts is left out.
- Megatron-LM of 2022 (the paper) sums what layers split by columns send back while the gradients of their weights are
  computed.
- Machines of the paper have eight HDR ports, those of vTrain four.
- bigscience set CUDA_LAUNCH_BLOCKING, without which 320 GPUs hung: hosts and devices take turns, and ranks wait for sends.
  Replicas share the state of the optimizer. From 28 February 2022 on, gradients were added up in fp32, and embedding and head
  counted as blocks when stages were cut. An all-reduce between its machines took one of four ports, at 40.5 Gbit/s
  (experiments/bandwidth/all_reduce_bench-a100-n4.txt); several at once are taken to use all four.

## What is known to be off

- **bigscience** is forecast too fast, the more so the larger a rank's part of the model: replicas take longer to agree than
  two passes of their gradients over the measured network. Rows of one setting were measured 1 to 7 % apart.
- **bigscience with heads of 108 features** took half as long again as with heads of 144 or 216: their matrices do not begin at
  multiples of 16 bytes, and the products of attention run at some 10 TFLOP/s, as without tensor cores. That is not modelled.
  Nor is it known why 104 and 112 heads of 128 features, and one sequence a micro-batch on four tensor-parallel ranks, were 15
  to 45 % slower than their neighbours.
- **Fewer than eight tensor-parallel ranks on several machines** took up to twice the time of eight, 512 GPUs more than 64. No
  assumption of the table below explains it. Micro-batches, slots of the pipeline, bytes of activations and of gradients, calls
  and bytes of tensor parallelism explain at most 13 % of the variance of the missing seconds, each by a line with a constant.
  Rows that differ in the micro-batch alone disagree by 10 to 15 %: on tp 4, pp 8, dp 16, micro-batches of 2, 4, 6 and 12 took
  16.1, 17.4, 16.1 and 20.6 s, though the larger have the longer bubble. The model of 175B has none of it. Calculon is as far
  off there.
- **64 sequences at once on 64 GPUs** are published at twice the time of 32, for the same work: the row looks like one of twice
  the batch, and is counted as it stands.
- **Eight tensor-parallel ranks bound by launches** take 12 to 17 % longer than four in the rows of one machine. Each is the
  trace of one layer; why its launches were slower is not known.

## What other communication would explain

Mean errors of the groups, and the regret of ranking plans by such forecasts ([search](search.md)): on 13 measured groups, how
much longer the plan ranked first took than the best. A port is one of four of a machine. Nothing is fitted, and none of these
is assumed.

{variants}

- One port for replicas fits what data parallelism adds on vTrain's 64 and 256 GPUs: groups of 8 of 8 GPUs of a machine and of
  2 or 4 were as if they had one port, groups of one GPU in each machine as if they had all four. It does not fit tensor
  parallelism across two machines, which reached all four, nor 512 GPUs, and it makes the ranking of bigscience's plans worse.
  No source says it.
- Gradients in fp32 would fit bigscience's runs in fp16, whose optimizer adds them up in 16 bits.

## By devices

{by_devices}
"""
