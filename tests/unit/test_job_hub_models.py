"""`hf:` and `timm:` models: from config only, without a network."""

from __future__ import annotations

import json
import sys

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from gpuwise.errors import GpuwiseError, InputError, JobError, UnknownNameError  # noqa: E402
from gpuwise.job import checked_batch, repeated_blocks, resolve  # noqa: E402
from gpuwise.job.batches import map_tensors  # noqa: E402
from gpuwise.job.job import meta_model  # noqa: E402
from gpuwise.job.presets import preset_job  # noqa: E402
from gpuwise.job.torchvision_cpu import make_importable  # noqa: E402
from gpuwise.runtime.build.program import build  # noqa: E402
from gpuwise.strategy import Strategy  # noqa: E402

TEXT = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 48,
}
CONFIGS = {
    "llama": ({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_key_value_heads": 2, **TEXT}, 2),
    "bert": ({"model_type": "bert", "architectures": ["BertForMaskedLM"], **TEXT}, 2),
    "bert-classes": ({"model_type": "bert", "architectures": ["BertForSequenceClassification"], **TEXT}, 2),
    "bert-bare": ({"model_type": "bert", "architectures": ["BertModel"], **TEXT}, 2),
    "roberta": ({"model_type": "roberta", "architectures": ["RobertaForMaskedLM"], **TEXT}, 2),
    "gpt2": (
        {
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "vocab_size": 64,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 48,
        },
        2,
    ),
    "t5": (
        {
            "model_type": "t5",
            "architectures": ["T5ForConditionalGeneration"],
            "vocab_size": 64,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 3,
            "num_heads": 4,
            "n_positions": 48,
            "decoder_start_token_id": 0,
        },
        6,
    ),
    "vit": (
        {
            "model_type": "vit",
            "architectures": ["ViTForImageClassification"],
            "image_size": 32,
            "patch_size": 8,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 64,
        },
        2,
    ),
}


@pytest.fixture
def folder(tmp_path):
    def write(config):
        (tmp_path / "config.json").write_text(json.dumps(config))
        return tmp_path

    return write


@pytest.mark.parametrize("name", CONFIGS)
def test_a_local_config_trains_one_step(folder, name):
    config, blocks = CONFIGS[name]
    job = resolve(f"hf:{folder(config)}")
    torch.manual_seed(0)
    model = job.model()
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert len(repeated_blocks(model)) == blocks
    loss = job.loss(model, checked_batch(job, 2))
    loss.backward()
    assert loss.shape == ()
    assert loss.isfinite()
    assert job.image_size == 32 if name == "vit" else job.tokens_per_sample == job.seq_len <= 48


def test_sizes_follow_the_flags_and_the_config(folder):
    path = folder(CONFIGS["llama"][0])
    assert checked_batch(resolve(f"hf:{path}", seq_len=16), 3)["input_ids"].shape == (3, 16)
    assert any(guess.flag == "--seq-len" for guess in resolve(f"hf:{path}").assumptions)
    with pytest.raises(InputError, match="up to 48 tokens"):
        resolve(f"hf:{path}", seq_len=49)
    with pytest.raises(InputError, match="no image size"):
        resolve(f"hf:{path}", image_size=32)


def test_image_models_take_no_sequence_length(folder):
    with pytest.raises(InputError, match="no sequence length"):
        resolve(f"hf:{folder(CONFIGS['vit'][0])}", seq_len=8)


@pytest.mark.parametrize("preset", ["bert-base", "bert-large"])
def test_our_bert_is_as_large_as_theirs(preset):
    job = preset_job(preset)
    config = job.model.args[0]
    make_importable()  # transformers imports torchvision where it is installed
    theirs = transformers.BertConfig(
        hidden_size=config.width,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=config.hidden,
    )
    with torch.device("meta"):
        model = transformers.AutoModelForMaskedLM.from_config(theirs)
    model.tie_weights()
    assert model.num_parameters() == sum(p.numel() for p in meta_model(job).parameters())


def test_a_folder_without_config_and_a_broken_one(tmp_path):
    with pytest.raises(JobError, match=r"there is no .*config\.json"):
        resolve(f"hf:{tmp_path}")
    (tmp_path / "config.json").write_text("{not json")
    with pytest.raises(JobError, match="cannot read") as caught:
        resolve(f"hf:{tmp_path}")
    assert caught.value.ways_out


MIXTRAL = {
    "model_type": "mixtral",
    "architectures": ["MixtralForCausalLM"],
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    **TEXT,
}
ODD = ("twelve", "", -3, 0, 2.5, None, [1, 2], {"a": 1}, True, 10**12, 10**400, [[[]]], float("nan"), float("inf"), 7)


@pytest.mark.parametrize("name", ["llama", "bert", "gpt2", "t5", "vit", "mixtral"])
def test_any_value_of_any_key_is_a_model_or_the_users_error(folder, name):
    config = MIXTRAL if name == "mixtral" else CONFIGS[name][0]
    for key in config:
        for value in ODD:
            path = folder({**config, key: value})
            refusal = None
            try:
                job = resolve(f"hf:{path}")
                meta_model(job)
                checked_batch(job, 1)
            except GpuwiseError as error:
                refusal = error
            if refusal is not None and isinstance(config[key], int) and value in ("twelve", "", [[[]]]):
                assert key in refusal.what or key == "image_size", (key, value, refusal.what)


def test_a_number_of_layers_that_would_take_years_to_build_is_refused_at_once(folder):
    for value, text in ((10**12, "over 100,000"), (-3, "below zero"), (10**400, "64 bits")):
        with pytest.raises(JobError, match=text):
            resolve(f"hf:{folder({**CONFIGS['gpt2'][0], 'n_layer': value})}")


def test_a_task_we_have_no_batches_for(folder):
    config = {"model_type": "timesformer", "architectures": ["TimesformerForVideoClassification"]}
    with pytest.raises(JobError, match="cannot make batches"):
        resolve(f"hf:{folder(config)}")


def test_a_model_without_a_head_says_which_one_is_added(folder):
    bert, named = (
        {"model_type": "bert", "architectures": [name], "num_hidden_layers": 1} for name in ("BertModel", "BertForMaskedLM")
    )
    (note,) = [note for note in resolve(f"hf:{folder(bert)}").assumptions if note.kind == "assumed-head"]
    assert "BertModel" in note.text
    assert not any(note.kind == "assumed-head" for note in resolve(f"hf:{folder(named)}").assumptions)


TINY_BERT = {"model_type": "bert", "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}


@pytest.mark.parametrize("architecture", ["BertModel", "BertForMaskedLM", "BertForSequenceClassification"])
def test_a_forward_pass_multiplies_what_transformers_own_class_does(folder, architecture):
    job = resolve(f"hf:{folder({**TINY_BERT, 'architectures': [architecture]})}", seq_len=16)
    torch.manual_seed(0)
    own = (
        getattr(transformers, architecture)
        ._from_config(transformers.BertConfig(**TINY_BERT), attn_implementation="sdpa")
        .eval()
    )
    tokens = job.batch(3)["input_ids"]
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        own(tokens)
    pooler = 2 * 3 * 32 * 32 if architecture == "BertModel" else 0  # of the first token; a masked-word model has none
    program = build(job, Strategy(micro_batch=3, mode="infer"), "cpu")
    with FlopCounterMode(display=False) as recorded:
        output = program.infer(job.batch(3))
    assert recorded.get_total_flops() == counted.get_total_flops() - pooler
    assert ("last_hidden_state" in output) == (architecture == "BertModel")
    assert "loss" not in output


@pytest.mark.parametrize(
    ("settings", "weights"),
    [
        ({"quant_method": "awq", "bits": 4}, "--weights int4"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "--weights fp8-block"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "--weights nf4"),
        ({"quant_method": "quip"}, ""),
        (None, None),
    ],
)
def test_a_config_of_quantized_weights_says_that_they_are_taken_whole(folder, settings, weights):
    quantization = {"quantization_config": settings} if settings else {}
    for model in ({"model_type": "bert", **TINY_BERT, "architectures": ["BertForMaskedLM"]}, CONFIGS["llama"][0]):
        job = resolve(f"hf:{folder({**model, **quantization})}")
        notes = [note.text for note in job.assumptions if note.kind == "quantized-config"]
        assert len(notes) == (settings is not None)
        assert all(settings["quant_method"] in note for note in notes)
        served = bool(weights) and job.generate is not None  # what writes no text takes no --weights
        assert all((weights in note if served else "--weights" not in note) for note in notes)


def test_a_decoder_without_a_head_is_served_for_its_embeddings(folder):
    sizes = {"vocab_size": 100, "hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 64}
    config = {"model_type": "mistral", **sizes, "num_key_value_heads": 1}
    for architectures, generates in ((["MistralModel"], False), (["MistralForCausalLM"], True), (None, True)):
        job = resolve(f"hf:{folder({**config, 'architectures': architectures})}")
        assert (job.generate is not None) == generates


def test_a_model_that_reads_images_too_reads_text_alone_here(folder):
    text = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 64, "vocab_size": 100}
    images = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 64, "image_size": 28}
    config = {"model_type": "mistral3", "text_config": {**text, "model_type": "mistral"}, "vision_config": images}
    job = resolve(f"hf:{folder({**config, 'architectures': ['Mistral3ForConditionalGeneration']})}", seq_len=16)
    assert job.generate is not None
    assert [note.text for note in job.assumptions if note.kind == "text-of-multimodal"]
    assert set(job.batch(2)) == {"input_ids", "labels"}
    frozen = {name.split(".")[1] for name, parameter in meta_model(job).named_parameters() if not parameter.requires_grad}
    assert frozen == {"vision_tower", "multi_modal_projector"}


def test_a_folder_that_is_named_alone_is_pointed_to(folder, monkeypatch):
    path = folder(CONFIGS["llama"][0])
    monkeypatch.chdir(path.parent)
    with pytest.raises(JobError, match="no preset") as caught:
        resolve(path.name)
    assert caught.value.ways_out == (f"hf:./{path.name}",)


def test_an_unreachable_hub_is_answered_with_a_local_folder(monkeypatch):
    def unreachable(*args, **kwargs):
        raise OSError("We couldn't connect to the hub.\nCheck your connection.")

    monkeypatch.setattr(transformers.PretrainedConfig, "get_config_dict", unreachable)
    with pytest.raises(JobError, match="couldn't connect") as caught:
        resolve("hf:someone/model")
    assert "hf:./folder" in caught.value.ways_out[0]


def test_no_code_of_the_repository_is_run(folder):
    config = {"model_type": "mine", "architectures": ["Mine"], "auto_map": {"AutoConfig": "mine.MyConfig"}}
    path = folder(config)
    (path / "mine.py").write_text("import sys; sys.modules['was_run'] = sys\n")
    with pytest.raises(JobError, match="cannot read"):
        resolve(f"hf:{path}")
    assert "was_run" not in sys.modules


class TestTimm:
    @pytest.fixture(autouse=True)
    def _timm(self):
        pytest.importorskip("torch")
        if __import__("importlib.util").util.find_spec("timm") is None:
            pytest.skip("timm is not installed")

    def test_a_model_trains_one_step(self):
        job = resolve("timm:resnet18", image_size=64)
        assert (job.sample_unit, job.image_size) == ("image", 64)
        torch.manual_seed(0)
        model = job.model()
        assert sum(p.numel() for p in model.parameters()) == 11_689_512  # torchvision's ResNet-18
        assert len(repeated_blocks(model)) == 8
        assert job.loss(model, checked_batch(job, 2)).isfinite()

    def test_a_model_without_a_classifier_has_a_loss_on_its_features(self):
        job = resolve("timm:eva02_tiny_patch14_224", image_size=56)
        loss = job.loss(job.model(), job.batch(2))
        loss.backward()
        assert loss.ndim == 0
        assert any("no classifier" in note.text for note in job.assumptions)

    def test_a_vision_transformer_is_built_for_the_size_asked(self):
        job = resolve("timm:vit_tiny_patch16_224.augreg_in21k", image_size=64)
        assert meta_model(job).pos_embed.shape[1] == 17

    def test_unknown_names_and_sizes(self):
        with pytest.raises(UnknownNameError, match="resnet19"):
            resolve("timm:resnet19")
        with pytest.raises(InputError, match="no sequence length"):
            resolve("timm:resnet18", seq_len=4)
        with pytest.raises(InputError, match="cannot take images of 8x8 pixels"):
            resolve("timm:vgg11", image_size=8)


def test_outputs_of_models_are_mapped_and_keep_their_type():
    """They are dictionaries that refuse `update`."""
    make_importable()
    from transformers.modeling_outputs import CausalLMOutputWithPast

    output = CausalLMOutputWithPast(loss=torch.ones(()), logits=torch.ones(2, 3))
    changed = map_tensors(output, lambda tensor: tensor * 2)
    assert type(changed) is CausalLMOutputWithPast
    assert (float(changed.loss), float(changed["loss"]), float(output.loss)) == (2.0, 2.0, 1.0)
    assert torch.equal(changed.logits, 2 * output.logits)
