"""Passes of small networks over few samples, for `measure` to observe: what a server runs of a model that fits a phone. Their
operations take microseconds, so the cost of each call shows here, and weights stay in caches from pass to pass."""

from __future__ import annotations

from functools import partial

from gpuwise.job.models.bert import BertConfig
from gpuwise.job.models.gpt2 import Gpt2, Gpt2Config
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.job.models.vit import VitConfig
from gpuwise.measure.networks import (
    CLASSES,
    LstmLanguageModel,
    ObservedNetwork,
    bert_job,
    convnext_stage,
    convolution_job,
    language_job,
    mbconv_stage,
    mlp_job,
    resnet_stage,
    resnext_stage,
    vgg_stage,
    vit_job,
    window_job,
)

# As many samples on every machine: those of a few users. Channels are multiples of 8, as almost everywhere.
SMALL: tuple[ObservedNetwork, ...] = (
    ObservedNetwork("MLP, a row", mlp_job(24, 96, 48), 1),
    ObservedNetwork(
        "depthwise convolution net, an image", convolution_job(21, 160, width=16, kernels=(3, 5), stage=mbconv_stage), 1
    ),
    ObservedNetwork("ViT, an image", vit_job(VitConfig(128, 16, 160, 3, 4, 640, CLASSES)), 1),
    ObservedNetwork("ResNet, an image", convolution_job(22, 128, width=32, kernels=(3, 1), stage=resnet_stage), 1),
    ObservedNetwork("BERT, a sentence", bert_job(BertConfig(3_000, 128, 2, 128, 3, 2, 512), 28), 1),
    ObservedNetwork("ConvNeXt, an image", convolution_job(23, 128, width=24, kernels=(7, 5), stage=convnext_stage), 1),
    ObservedNetwork("MLP, 16 rows", mlp_job(50, 192, 80, 40), 16),
    ObservedNetwork(
        "depthwise convolution net, 3 images", convolution_job(24, 192, width=16, kernels=(3, 5), stage=mbconv_stage), 3
    ),
    ObservedNetwork("plain CNN, an image", convolution_job(25, 112, width=16, kernels=(3, 1), stage=vgg_stage), 1),
    ObservedNetwork("ResNeXt, 2 images", convolution_job(26, 112, width=16, kernels=(3,), stage=resnext_stage), 2),
    ObservedNetwork("ResNeXt, an image", convolution_job(40, 176, width=24, kernels=(3,), stage=resnext_stage), 1),
    ObservedNetwork("GPT-2, a prompt", language_job(partial(Gpt2, Gpt2Config(2_000, 128, 192, 3, 6)), 2_000, 40), 1),
    ObservedNetwork("Llama, 2 prompts", language_job(partial(Llama, LlamaConfig(2_000, 256, 3, 8, 4, 640)), 2_000, 20), 2),
    ObservedNetwork("windowed transformer, an image", window_job(96, width=48, heads=2, windows=(6, 4)), 1),
    ObservedNetwork("LSTM, 2 texts", language_job(partial(LstmLanguageModel, 2_000, 96, 128, 1), 2_000, 20), 2),
)
