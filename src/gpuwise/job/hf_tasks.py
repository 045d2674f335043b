"""The task of a Hugging Face config: which class builds its model, and what its example batches hold."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

import torch
from torch import nn

from gpuwise.errors import JobError
from gpuwise.job.hf_config import HfConfig

MULTIMODAL = "AutoModelForImageTextToText"
OF_ENCODER_DECODERS = ("translation", "speech")
NOT_TRAINED = ("boxes", "depth")  # on targets that gpuwise does not make


class AutoClass(Protocol):
    """A class such as transformers.AutoModelForCausalLM, which chooses a model's class by its config."""

    _model_mapping: Container[type]

    def from_config(self, config: HfConfig, *, dtype: torch.dtype, attn_implementation: str | None = None) -> nn.Module: ...


@dataclass(frozen=True)
class HfTask:
    """A task of Transformers' models.

    Attributes:
        ending: of the class names in `architectures` that name it.
        auto_class: of transformers.
        kind: of example batches, a key of gpuwise.job.hf_batches.KINDS.
    """

    ending: str
    auto_class: str
    kind: str

    def takes(self, transformers: ModuleType, config: HfConfig) -> bool:
        """Whether its class builds a model from a config."""
        auto_class: AutoClass | None = getattr(transformers, self.auto_class, None)  # some are not in every version
        if auto_class is None or type(config) not in auto_class._model_mapping:
            return False
        return not (_is_encoder_decoder(config) and self.auto_class == MULTIMODAL)


# Where several take a config that names none of them, the first is what its family is pretrained with.
TASKS = (
    HfTask("ForCausalLM", "AutoModelForCausalLM", "next-token"),
    HfTask("LMHeadModel", "AutoModelForCausalLM", "next-token"),
    HfTask("ForMaskedLM", "AutoModelForMaskedLM", "masked-word"),
    HfTask("ForPreTraining", "AutoModelForMaskedLM", "masked-word"),
    HfTask("ForConditionalGeneration", "AutoModelForSeq2SeqLM", "translation"),
    HfTask("ForConditionalGeneration", MULTIMODAL, "next-token"),  # Gemma 3, Qwen2.5-VL: their text is served and trained
    HfTask("ForConditionalGeneration", "AutoModelForSpeechSeq2Seq", "speech"),  # Whisper
    HfTask("ForSequenceClassification", "AutoModelForSequenceClassification", "text-class"),
    HfTask("ForTokenClassification", "AutoModelForTokenClassification", "token-class"),
    HfTask("ForQuestionAnswering", "AutoModelForQuestionAnswering", "answer-span"),
    HfTask("ForMultipleChoice", "AutoModelForMultipleChoice", "choice"),
    HfTask("ForImageClassification", "AutoModelForImageClassification", "image-class"),
    HfTask("ForSemanticSegmentation", "AutoModelForSemanticSegmentation", "pixel-class"),
    HfTask("ForObjectDetection", "AutoModelForObjectDetection", "boxes"),
    HfTask("ForDepthEstimation", "AutoModelForDepthEstimation", "depth"),
    HfTask("Model", "AutoModelForZeroShotImageClassification", "image-text"),  # CLIP, SigLIP
    HfTask("ForCTC", "AutoModelForCTC", "transcript"),
    HfTask("ForSequenceClassification", "AutoModelForAudioClassification", "sound-class"),  # Wav2Vec2, HuBERT
    HfTask("ForAudioClassification", "AutoModelForAudioClassification", "sound-class"),
)


def task_of(transformers: ModuleType, config: HfConfig, reference: str) -> tuple[HfTask, bool]:
    """The task of a config, and whether its `architectures` name it.

    Raises JobError where no task takes the config.
    """
    for architecture in config.architectures or []:
        for task in TASKS:
            if architecture.endswith(task.ending) and task.takes(transformers, config):
                return task, True
    added = next(_of_pretraining(transformers, config), None)
    if added is not None:
        return added, False
    endings = ", ".join(dict.fromkeys(task.ending for task in TASKS if task.ending != "Model"))
    raise JobError(
        f"hf:{reference} is a {config.model_type} with architectures {config.architectures}, a task gpuwise cannot "
        f"make batches for (it can for {endings}, of models that read text, images or sound).",
        ["write a Job with your own batch and loss: path/to/file.py:job"],
    )


def _of_pretraining(transformers: ModuleType, config: HfConfig) -> Iterator[HfTask]:
    """The tasks whose head may be added to a model without one, such as T5Model, BertModel or WhisperModel."""
    for task in TASKS:
        if _is_encoder_decoder(config) != (task.kind in OF_ENCODER_DECODERS) or not task.takes(transformers, config):
            continue
        if task.kind == "next-token" and type(config) in transformers.AutoModelForMaskedLM._model_mapping:
            continue  # encoders such as BERT can be read as decoders too, but are not trained so
        yield task


def _is_encoder_decoder(config: HfConfig) -> bool:
    return bool(getattr(config, "is_encoder_decoder", False))
