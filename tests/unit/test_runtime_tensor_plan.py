"""Tensor-parallel plans: the job's, the config's, and those derived from an observed forward pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gpuwise.errors import InputError, JobError, UnsupportedError
from gpuwise.job import Job
from gpuwise.job.models.bert import Bert, BertConfig
from gpuwise.job.models.gpt2 import Gpt2, Gpt2Config
from gpuwise.job.models.language import next_token_batch, token_loss
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.job.models.mixtral import Mixtral, MixtralConfig
from gpuwise.job.models.t5 import T5, T5Config
from gpuwise.job.parallel import TensorPlan, check_sizes, plan_of_config, plan_of_job
from gpuwise.runtime.parallel.forward_pass import observed
from gpuwise.runtime.parallel.probe import cut_copy, spread_over_blocks
from gpuwise.runtime.parallel.split import note_of
from gpuwise.runtime.parallel.tensor_plan import derived_plan

VOCABULARY, SEQ_LEN = 64, 16
TOKENS = torch.arange(2 * SEQ_LEN).view(2, SEQ_LEN) % VOCABULARY
_SIZES = {"vocabulary": VOCABULARY, "width": 32, "layers": 1, "heads": 4, "hidden": 64}
BY_HEADS = {"q": "colwise", "k": "colwise", "v": "colwise", "out": "rowwise"}
GATHERED = {name: word.replace("colwise", "colwise_gather_output") for name, word in BY_HEADS.items()} | {
    "out": "rowwise_split_input"
}
MLP = {"up": "colwise", "down": "rowwise"}


def llama(**sizes: int) -> Llama:
    return Llama(LlamaConfig(**{"kv_heads": 2, **_SIZES, **sizes}))


def plan_of(model: nn.Module, *inputs: torch.Tensor, degree: int = 2) -> TensorPlan:
    with observed(model) as events:
        model(*inputs or (TOKENS,))
    return derived_plan(model, events, degree)


def words_in(plan: TensorPlan, block: str) -> dict[str, str]:
    return {path.removeprefix(f"{block}."): word for path, word in plan.words.items() if path.startswith(f"{block}.")}


def test_attention_is_split_by_heads_and_perceptrons_by_hidden_features():
    plan = plan_of(llama())
    assert words_in(plan, "layers.0.attention") == BY_HEADS
    assert words_in(plan, "layers.0.mlp") == {"gate": "colwise", **MLP}
    assert plan.words["words"] == "embedding_rowwise"
    assert plan.words["head"] == "colwise_gather_output"
    assert plan.remarks == ()


def test_each_expert_of_a_mixture_is_split_and_its_router_stays_whole():
    plan = plan_of(Mixtral(MixtralConfig(kv_heads=2, experts=2, **_SIZES)))
    assert words_in(plan, "layers.0.mlp.experts.1") == {"gate": "colwise", **MLP}
    assert "layers.0.mlp.router" not in plan.words


def test_queries_keys_and_values_of_one_layer_are_gathered():
    plan = plan_of(Gpt2(Gpt2Config(VOCABULARY, SEQ_LEN, 32, 1, 4, dropout=0.0)))
    assert words_in(plan, "layers.0") == {"qkv": "colwise_gather_output", "out": "rowwise_split_input", **MLP}
    assert "one layer makes queries, keys and values" in note_of(plan).text


def test_what_dropout_lies_between_is_gathered():
    config = BertConfig(VOCABULARY, SEQ_LEN, 2, 32, 1, 4, 64, dropout=0.1)
    assert words_in(plan_of(Bert(config)), "layers.0") == {**GATHERED, **MLP}


def test_attention_to_another_sequence_is_split_as_well():
    plan = plan_of(T5(T5Config(VOCABULARY, 32, 1, 4, 8, 64, dropout=0.0)), TOKENS, TOKENS)
    assert words_in(plan, "decoder.layers.0.cross") == BY_HEADS


class SoftmaxBetween(nn.Module):
    """Perceptrons that a plan must not pair: one layer is used twice, one has a norm of its whole width behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.normed, self.norm, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.normed(self.twice(self.twice(x)))))


def test_layers_used_twice_stay_whole_and_a_norm_of_the_whole_width_is_gathered_before():
    plan = plan_of(SoftmaxBetween(), torch.randn(2, 8))
    assert dict(plan.words) == {"normed": "colwise_gather_output", "last": "rowwise_split_input"}


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(InputError, match=r"over 4 devices does not divide the 2 heads of 'layers\.0\.attention\.k'") as caught:
        plan_of(llama(), degree=4)
    assert caught.value.ways_out[0] == "--mesh tp=2"


def test_a_vocabulary_that_does_not_divide_stays_whole_and_is_named():
    plan = plan_of(llama(vocabulary=65))
    assert "words" not in plan.words
    assert "head" not in plan.words
    assert plan.remarks[0].modules == ("words", "head")
    assert "65 rows" in plan.remarks[0].reason


def test_a_model_without_linear_layers_is_refused():
    with pytest.raises(UnsupportedError, match="no linear layers"):
        plan_of(nn.Sequential(nn.Conv2d(3, 3, 1)), torch.randn(1, 3, 2, 2))


def test_the_words_of_a_cut_copy_are_those_of_all_its_blocks():
    model = llama(layers=5)
    copy = cut_copy(model)
    assert [name for name, _ in copy.layers.named_children()] == ["0", "1"]
    assert len(model.layers) == 5
    words = spread_over_blocks(dict(plan_of(copy).words), model)
    assert words == dict(plan_of(model).words)


def test_a_jobs_plan_names_modules_by_patterns():
    plan = plan_of_job({"layers.*.mlp.up": "colwise", "layers.*.mlp.down": "rowwise_rep"}, llama(layers=2))
    assert dict(plan.words) == {
        **{f"layers.{i}.mlp.up": "colwise" for i in range(2)},
        **{f"layers.{i}.mlp.down": "rowwise_split_input" for i in range(2)},
    }


def test_a_plan_that_names_no_module_is_refused():
    with pytest.raises(JobError, match=r"names 'layers\.\*\.attn\.q', but the model has no such module"):
        plan_of_job({"layers.*.attn.q": "colwise"}, llama())


@pytest.mark.parametrize("plan", [{}, ["q"], {"q": "diagonal"}, {3: "colwise"}], ids=str)
def test_a_plan_that_is_none_is_refused(plan: object):
    with pytest.raises(JobError, match="tensor_parallel_plan"):
        Job(llama, lambda n: next_token_batch(n, vocabulary=64, seq_len=16), token_loss, tensor_parallel_plan=plan)  # type: ignore[arg-type]


def test_sizes_that_do_not_divide_and_modules_that_cannot_be_split_are_refused():
    model = llama()
    with pytest.raises(InputError, match=r"over 3 devices does not divide the 64 outputs of 'layers\.0\.mlp\.up'"):
        check_sizes(TensorPlan({"layers.0.mlp.up": "colwise"}, "a test"), model, 3)
    with pytest.raises(JobError, match="splits 'norm', a RMSNorm"):
        check_sizes(TensorPlan({"norm": "colwise"}, "a test"), model, 2)


class Configured(nn.Module):
    """A model with a config as Hugging Face's have."""

    base_model_prefix = "model"
    _tp_plan = {"head": "colwise_gather_output"}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.config = type("Config", (), {})()
        self.config.base_model_tp_plan = {"layers.*.mlp.up": "colwise", "layers.*.mlp.experts": "moe_tp_experts"}
        self.model, self.head = llama(), nn.Linear(32, 64)


def test_the_plan_of_a_config_is_taken_with_the_path_of_its_base_model():
    plan = plan_of_config(Configured())
    assert plan is not None
    assert dict(plan.words) == {"model.layers.0.mlp.up": "colwise", "head": "colwise_gather_output"}
    assert plan.remarks[0].modules == ("model.layers.*.mlp.experts",)
    assert plan_of_config(llama()) is None
