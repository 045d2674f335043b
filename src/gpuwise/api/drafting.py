"""DraftedModel: a model whose next tokens a draft writes ahead (speculative decoding)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuwise.api.devices import Device
from gpuwise.api.engine_model import EngineModel
from gpuwise.api.served_job import served_job
from gpuwise.errors import InputError, JobError, UnsupportedError
from gpuwise.notes import Note
from gpuwise.notes import serving_modes as notes
from gpuwise.serving.drafted import Drafted
from gpuwise.serving.engines import LOGIT_BYTES
from gpuwise.serving.formats import Format, StoredWeights, stored
from gpuwise.serving.instance import Instance, LoadShape
from gpuwise.serving.launch import UNKNOWN_MODEL, model_of
from gpuwise.serving.launch_modes import LOOKUP, UNKNOWN_DRAFT, with_draft, with_own_draft
from gpuwise.serving.own_draft import OwnKind, own_draft
from gpuwise.serving.speculative import Speculation, SpeculativeInstance, SpeculativeStep, pays_up_to
from gpuwise.serving.step_time import EngineStep

if TYPE_CHECKING:
    from gpuwise.api.engine_model import ModelArguments
    from gpuwise.job import Job
    from gpuwise.serving.generation import Generation

DRAFT_TOKENS = 3
ACCEPTANCE = 0.7
# distilgpt2 before gpt2-medium 0.64, before gpt2-large 0.71: hurjun/speculative-decoding-lab (2026). Llama 3.2 3B before
# 3.3 70B 0.72: a user's log of vLLM (Nexusflow/Athene-V2-Chat, discussion 6, 2024).
ACCEPTANCE_SOURCE = "0.64 to 0.72 were measured with GPT-2 and Llama 3"
# Keys of configs with the number of layers that predict further tokens: DeepSeek-V3 and GLM-4.5; Qwen3.5.
MTP_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
# Drafts that are a part of the model: tokens drafted and acceptance by default, and where the latter is from.
OWN_DEFAULTS: dict[str, tuple[int, float, str]] = {
    "mtp": (1, 0.82, "0.81 to 0.82 were measured of DeepSeek-R1: vllm-project/vllm#12755; later tokens are accepted less"),
    "eagle3": (3, 0.76, "2.79 tokens an iteration were measured of Llama 3.1 8B on MT-bench: vllm-project/vllm#20780"),
}
# vLLM 0.4 to 0.6 (V0) checks each drafted token as a sequence of its own: vllm/spec_decode/batch_expansion.py.
EXPANDS = ("vllm-2024",)
# Vocabularies that differ by padding: SPEC_VOCAB_MAX_SIZE_DIFFERENCE in common/speculative.cpp of llama.cpp.
MOST_PADDING = {"llama.cpp": 128}


@dataclass(frozen=True)
class DraftSettings:
    """What the user says of a draft.

    Attributes:
        draft: a job, "ngram" for a look-up in the text so far, or a part of the model, "mtp" or "eagle3".
        speculation: how many tokens it writes ahead, and how often they are accepted.
        is_assumed: whether the acceptance is the default.
    """

    draft: str
    speculation: Speculation
    is_assumed: bool

    @classmethod
    def of(cls, draft: str, *, draft_tokens: int | None, acceptance: float | None) -> DraftSettings:
        """From the keywords of serve_plan; None for the default. Raises InputError for numbers out of range, and for a look-up
        without an acceptance: it depends on the texts alone."""
        if draft == LOOKUP and acceptance is None:
            raise InputError(
                "how often looked-up tokens are accepted depends on the texts alone, so there is no default.",
                ["--acceptance 0.3", "--draft JOB, a smaller model with the same vocabulary"],
            )
        usual_tokens, usual, _ = OWN_DEFAULTS.get(draft, (DRAFT_TOKENS, ACCEPTANCE, ""))
        tokens = usual_tokens if draft_tokens is None else draft_tokens
        return cls(draft, Speculation(tokens, usual if acceptance is None else acceptance), acceptance is None)

    @property
    def own(self) -> OwnKind | None:
        """What part of the model writes ahead; None for another model, or a look-up."""
        return "mtp" if self.draft == "mtp" else "eagle3" if self.draft == "eagle3" else None


class DraftedModel(EngineModel):
    """A model with a draft.

    Arguments:
        settings: what the user says of it.
        arguments: those of EngineModel.

    Raises JobError, or InputError where the draft cannot generate, or is a layer that the model does not have.
    """

    def __init__(self, settings: DraftSettings, *arguments: *ModelArguments) -> None:
        super().__init__(*arguments)
        self._settings = settings
        self._modes: dict[str, Drafted] = {}
        self._draft: EngineModel | None = None
        if settings.own == "mtp":
            check_predicts(self.job.live())
        elif settings.own is None and settings.draft != LOOKUP:
            # A draft of llama.cpp has the mix of the model; others take it as it is published, in 16 bits.
            format = self.format if self.engine.name == "llama.cpp" else None
            self._draft = EngineModel(served_job(settings.draft), self.engine, self.named_precision, format, self.cache)

    @property
    def notes(self) -> tuple[Note, ...]:
        """Also what speculative decoding does, and what is assumed of it."""
        speculation = self._settings.speculation
        source = OWN_DEFAULTS[self._settings.own][2] if self._settings.own else ACCEPTANCE_SOURCE
        assumed = notes.assumed_acceptance(acceptance=speculation.acceptance, source=source)
        return (
            *super().notes,
            notes.drafted(draft_tokens=speculation.draft_tokens, mean=speculation.stride),
            *self._version(),
            *((notes.format_of_draft(format=self._draft_format),) if self._settings.draft != LOOKUP else ()),
            *((assumed,) if self._settings.is_assumed else ()),
        )

    def _version(self) -> tuple[Note, ...]:
        """Which version of vLLM takes a draft model again: that of vllm-project/vllm pull request 24322, after 0.13."""
        a_model = self._settings.draft != LOOKUP and not self._settings.own
        return (notes.drafts_from_version(engine="vllm", version="0.13"),) if a_model and self.engine.name == "vllm" else ()

    @property
    def _draft_format(self) -> str:
        format = self._draft.format if self._draft else self._own_format
        return format.name if format else self.precision

    @property
    def _own_format(self) -> Format | None:
        """Of a draft that is a part of the model: MTP layers are in its checkpoint, others are published in 16 bits."""
        return self.format if self._settings.own == "mtp" else None

    def check(self, device: Device) -> None:
        """Raises UnsupportedError where the draft has no figures."""
        super().check(device)
        if device.machines > 1:
            raise UnsupportedError(
                "a draft of a model across machines has no figures yet", ["leave out --draft", "devices of one machine"]
            )

    def mode(self, device: Device) -> Drafted | None:
        """What the draft does on a device whose instance was made."""
        return self._modes.get(device.cluster.name)

    def launched(self, line: str, device: Device) -> str:
        """The line with the draft."""
        draft = self._settings.draft
        if self._settings.own:
            return with_own_draft(line, self.engine.name, self._settings.own, self._settings.speculation.draft_tokens)
        name = LOOKUP if draft == LOOKUP else model_of(draft)
        name = UNKNOWN_DRAFT if name == UNKNOWN_MODEL else name
        return with_draft(line, self.engine.name, name, self._settings.speculation.draft_tokens)

    def instance(self, device: Device, generation: Generation, load: LoadShape) -> Instance:
        """An instance with both models on the device; raises InputError where they do not fit, and JobError where their
        vocabularies differ."""
        speculation, engine = self._settings.speculation, self.engine
        draft, draft_weights = self._draft_of(device, generation)
        both, weights = _with_cache_of(generation, draft), stored(generation, self.format)
        draft_bytes = 0 if draft_weights is None else draft_weights.bytes
        sequences = engine.limits.on(device.chip.id, self._capacity_bytes(device)).sequences
        logits = min(sequences, engine.logits or sequences) * speculation.draft_tokens * generation.vocabulary * LOGIT_BYTES
        policy = engine.policy(
            both,
            capacity_bytes=self._capacity_bytes(device),
            outside_bytes=self._outside_bytes(device) + logits,
            longest=round(load.lengths.input_tokens + load.lengths.output_tokens),
            weight_bytes=weights.bytes + draft_bytes,
            chip=device.chip.id,
        )
        model = EngineStep(generation, device.cluster, costs=engine.costs, weights=weights)
        draft_step = None if draft is None else EngineStep(draft, device.cluster, costs=engine.costs, weights=draft_weights)
        step = SpeculativeStep(model, draft_step, speculation.draft_tokens, expands=engine.name in EXPANDS)
        past = round(load.lengths.input_tokens + load.lengths.output_tokens / 2)
        self._modes[device.cluster.name] = Drafted(
            draft=self._settings.draft,
            draft_tokens=speculation.draft_tokens,
            acceptance=speculation.acceptance,
            tokens_an_iteration=speculation.stride,
            pays_up_to=pays_up_to(model, step, stride=speculation.stride, past=past, most=policy.sequences),
            draft_weight_bytes=draft_bytes,
        )
        return SpeculativeInstance(step, policy, engine.spread, speculation, first_token_spread=engine.first_token_spread)

    def _draft_of(self, device: Device, generation: Generation) -> tuple[Generation | None, StoredWeights | None]:
        """How the draft runs, and its weights; None for a look-up."""
        if self._settings.own:
            own = own_draft(generation, self._settings.own, devices=generation.degrees.devices)
            weights = own.stored(self._own_format)
            if self._settings.own == "mtp":  # whose head is the model's
                weights = replace(weights, head_bytes=stored(generation, self.format).head_bytes)
            return own.priced(), weights
        if self._draft is None:
            return None, None
        draft = self._draft.of(device)
        self._check_vocabulary(generation, draft)
        return draft, stored(draft, self._draft.format)

    def _check_vocabulary(self, generation: Generation, draft: Generation) -> None:
        sizes = generation.vocabulary, draft.vocabulary
        if abs(sizes[0] - sizes[1]) > MOST_PADDING.get(self.engine.name, 0):
            raise JobError(
                f"{self._settings.draft} writes {sizes[1]:,} different tokens and {self.job.name} {sizes[0]:,}: a draft must "
                "have the vocabulary of the model.",
                ["a smaller model of the same family", "--draft ngram, which looks tokens up in the text so far"],
            )


def check_predicts(job: Job) -> None:
    """Raises JobError where the config of a job's model has no layers that predict further tokens."""
    from gpuwise.job.job import meta_model

    config = getattr(meta_model(job), "config", None)
    text = config.get_text_config() if config is not None and hasattr(config, "get_text_config") else config
    if not any(getattr(text, key, None) for key in MTP_KEYS):
        raise JobError(
            f"{job.name} has no layers that predict further tokens (its config's {' or '.join(MTP_KEYS)}).",
            ["--draft eagle3, a layer that others trained beside it", "--draft JOB, a smaller model with the same vocabulary"],
        )


def _with_cache_of(generation: Generation, draft: Generation | None) -> Generation:
    """The model whose tokens and sequences also take the draft's part of the cache."""
    if draft is None:
        return generation
    return replace(
        generation,
        cache_bytes_per_token=generation.cache_bytes_per_token + draft.cache_bytes_per_token,
        cache_bytes_per_sequence=generation.cache_bytes_per_sequence + draft.cache_bytes_per_sequence,
    )
