"""`hf:` models of other tasks than language: what their batches hold, against Transformers' own classes."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from gpuwise.api import forecast, train  # noqa: E402
from gpuwise.errors import InputError, JobError  # noqa: E402
from gpuwise.job import checked_batch, resolve  # noqa: E402
from gpuwise.runtime.build.program import build  # noqa: E402
from gpuwise.strategy import Strategy  # noqa: E402
from gpuwise.tracing import record  # noqa: E402

BLOCK = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 64}
BERT = {"model_type": "bert", "vocab_size": 64, "max_position_embeddings": 48, **BLOCK}
WAVE = {
    "conv_dim": [16, 16],
    "conv_kernel": [10, 3],
    "conv_stride": [80, 4],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "vocab_size": 32,
    **BLOCK,
}
WHISPER = {
    "model_type": "whisper",
    "vocab_size": 64,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "num_mel_bins": 8,
    "max_source_positions": 20,
    "max_target_positions": 12,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
CLIP = {
    "model_type": "clip",
    "text_config": {
        "vocab_size": 64,
        "max_position_embeddings": 7,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **BLOCK,
    },
    "vision_config": {"image_size": 32, "patch_size": 8, **BLOCK},
    "projection_dim": 16,
}
SEGFORMER = {
    "model_type": "segformer",
    "hidden_sizes": [8, 16, 16, 32],
    "decoder_hidden_size": 16,
    "depths": [1, 1, 1, 1],
    "num_attention_heads": [1, 1, 2, 2],
}
YOLOS = {"model_type": "yolos", "image_size": [32, 32], "patch_size": 8, "num_detection_tokens": 5, **BLOCK}
AST = {"model_type": "audio-spectrogram-transformer", "max_length": 64, "num_mel_bins": 16, "patch_size": 8, **BLOCK}

# The class of each model, its config, and the shapes of its inputs for two samples.
TASKS = {
    "BertForTokenClassification": (BERT, {"input_ids": (2, 48), "labels": (2, 48)}),
    "BertForQuestionAnswering": (BERT, {"input_ids": (2, 48), "start_positions": (2,), "end_positions": (2,)}),
    "BertForMultipleChoice": (BERT, {"input_ids": (2, 4, 48), "labels": (2,)}),
    "SegformerForSemanticSegmentation": (SEGFORMER, {"pixel_values": (2, 3, 64, 64), "labels": (2, 64, 64)}),
    "CLIPModel": (CLIP, {"input_ids": (2, 7), "pixel_values": (2, 3, 32, 32)}),
    "WhisperForConditionalGeneration": (WHISPER, {"input_features": (2, 8, 40), "labels": (2, 12)}),
    "ASTForAudioClassification": (AST, {"input_values": (2, 64, 16), "labels": (2,)}),
    "Wav2Vec2ForCTC": ({"model_type": "wav2vec2", **WAVE}, {"input_values": (2, 160_000), "labels": (2, 150)}),
    "Data2VecAudioForSequenceClassification": (
        {"model_type": "data2vec-audio", **WAVE},
        {"input_values": (2, 160_000), "labels": (2,)},
    ),
    "HubertForSequenceClassification": ({"model_type": "hubert", **WAVE}, {"input_values": (2, 160_000), "labels": (2,)}),
}
ANSWERS = ("labels", "start_positions", "end_positions")


@pytest.fixture
def job_of(tmp_path):
    def make(architecture, config, **sizes):
        (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": [architecture]}))
        return resolve(f"hf:{tmp_path}", **sizes)

    return make


def of_images_without_size(architecture):
    return {"image_size": 64} if architecture.startswith("Segformer") else {}


def flops_of_loss(job):
    """Of the forward pass, as PyTorch counts them. It counts no fused attention of the CPU, and grouped convolutions' gradients
    as if they were not grouped."""
    with FlopCounterMode(display=False) as counted, sdpa_kernel(SDPBackend.MATH):
        job.loss(job.model().train(), job.batch(2))
    return counted.get_total_flops()


@pytest.mark.parametrize("architecture", TASKS)
def test_a_task_has_the_loss_and_the_answer_of_its_own_class(job_of, architecture):
    config, shapes = TASKS[architecture]
    job = job_of(architecture, config, **of_images_without_size(architecture))
    torch.manual_seed(0)
    model = job.model().eval()
    assert type(model).__name__ == architecture
    batch = checked_batch(job, 2)
    assert {name: tuple(tensor.shape) for name, tensor in batch.items()} == shapes
    more = {"return_loss": True} if architecture == "CLIPModel" else {}
    own = model(**batch, **more)
    loss = job.loss(model, batch)
    torch.testing.assert_close(loss, own.loss, rtol=1e-5, atol=1e-5)
    loss.backward()
    reached = [parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad]
    assert sum(reached) >= 0.9 * len(reached)
    if job.forward is not None:
        answer = job.forward(model, batch)
        assert answer.get("loss") is None
        assert answer.keys() == own.keys() - {"loss"}


@pytest.mark.parametrize("architecture", ["BertForQuestionAnswering", "CLIPModel", "Wav2Vec2ForCTC"])
def test_a_forward_pass_multiplies_what_its_own_class_does(job_of, architecture):
    job = job_of(architecture, TASKS[architecture][0])
    torch.manual_seed(0)
    inputs = {name: tensor for name, tensor in job.batch(2).items() if name not in ANSWERS}
    own = job.model().eval()
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        own(**inputs)
    program = build(job, Strategy(micro_batch=2, mode="infer"), "cpu")
    with FlopCounterMode(display=False) as recorded:
        program.infer(job.batch(2))
    assert recorded.get_total_flops() == counted.get_total_flops() > 0


@pytest.mark.parametrize(
    "architecture",
    [
        "SegformerForSemanticSegmentation",
        "WhisperForConditionalGeneration",
        "Wav2Vec2ForCTC",
        "Data2VecAudioForSequenceClassification",
    ],
)
def test_a_recorded_step_multiplies_what_the_real_one_does(job_of, architecture):
    job = job_of(architecture, TASKS[architecture][0], **of_images_without_size(architecture))
    trace = record(job, Strategy(micro_batch=2), target="cpu")
    forward, backward = (int(trace.counts(phase) @ trace.operations.model_flops) for phase in ("forward", "backward"))
    assert forward == flops_of_loss(job) > 0
    assert backward > 1.5 * forward


def test_a_detector_answers_and_is_not_trained(job_of):
    job = job_of("YolosForObjectDetection", YOLOS)
    assert forecast(job, on="l4", micro_batch=2, mode="infer").step_time_s.value > 0
    with pytest.raises(JobError, match="targets that gpuwise does not make") as caught:
        forecast(job, on="l4", micro_batch=2)
    assert "--mode infer" in caught.value.ways_out[0]


def test_guesses_of_sound_and_choices_are_named(job_of):
    kinds = {note.kind for note in job_of("Wav2Vec2ForCTC", TASKS["Wav2Vec2ForCTC"][0]).assumptions}
    assert {"assumed-sound", "assumed-sequence-length", "random-parts-left-out"} <= kinds
    kinds = {note.kind for note in job_of("BertForMultipleChoice", BERT, seq_len=16).assumptions}
    assert "assumed-choices" in kinds
    assert "assumed-sequence-length" not in kinds


def test_layers_that_a_step_drops_by_chance_are_left_in(job_of):
    config = {**WHISPER, "encoder_layerdrop": 0.9, "decoder_layerdrop": 0.9}
    dropping = job_of("WhisperForConditionalGeneration", config)
    (note,) = (note.text for note in dropping.assumptions if note.kind == "random-parts-left-out")
    assert note.startswith("LayerDrop of the config")
    assert flops_of_loss(dropping) == flops_of_loss(job_of("WhisperForConditionalGeneration", WHISPER))


def test_what_is_of_training_alone_is_not_said_of_inference(job_of):
    config = TASKS["HubertForSequenceClassification"][0]
    job = job_of("HubertForSequenceClassification", config)
    for mode in ("train", "infer"):
        notes = {note.kind for note in forecast(job, on="l4", micro_batch=2, mode=mode).assumption_notes}
        assert ("random-parts-left-out" in notes) == (mode == "train")


def test_a_run_says_what_it_is_trained_on(job_of):
    result = train(job_of("CLIPModel", CLIP), steps=1, micro_batch=2, run=None, progress="silent")
    assert any("another loss" in note for note in result.notes)


def test_images_have_the_shape_of_the_config(job_of):
    wide = {**YOLOS, "image_size": [32, 64]}
    job = job_of("YolosForObjectDetection", wide)
    assert (job.image_size, job.batch(2)["pixel_values"].shape) == (None, (2, 3, 32, 64))
    assert any("32x64 pixels, of the config" in note.text for note in job.assumptions)
    job = job_of("YolosForObjectDetection", wide, image_size=32)
    assert (job.image_size, job.batch(2)["pixel_values"].shape) == (32, (2, 3, 32, 32))


def test_sizes_that_a_task_has_not_are_refused(job_of):
    for architecture, sizes, text in (
        ("HubertForSequenceClassification", {"seq_len": 8}, "no sequence length"),
        ("WhisperForConditionalGeneration", {"image_size": 8}, "no image size"),
        ("WhisperForConditionalGeneration", {"seq_len": 13}, "up to 12 tokens"),
        ("CLIPModel", {"seq_len": 8}, "up to 7 tokens"),
        ("Wav2Vec2ForCTC", {"seq_len": 501}, "up to 500 tokens"),  # of 500 frames none has two
    ):
        with pytest.raises(InputError, match=text):
            job_of(architecture, TASKS[architecture][0], **sizes)


def test_sound_in_a_form_that_is_not_known_is_refused(job_of):
    with pytest.raises(JobError, match="in which form that reads sound"):
        job_of("Speech2TextForConditionalGeneration", {"model_type": "speech_to_text"})


def test_a_head_that_has_no_batches_is_replaced_with_a_word(job_of):
    vit = {"model_type": "vit", "image_size": 32, "patch_size": 8, **BLOCK}
    for architecture, config in (("ViTForMaskedImageModeling", vit), ("BertForNextSentencePrediction", BERT)):
        (note,) = (note for note in job_of(architecture, config).assumptions if note.kind in ("another-head", "assumed-head"))
        assert (note.kind, architecture in note.text) == ("another-head", True)
