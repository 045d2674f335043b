"""What a launch line has besides, where layers lie on the host, a draft writes ahead, or prompts are read elsewhere."""

from __future__ import annotations

import json
import shlex

GPU_LAYERS = "--n-gpu-layers"
UNKNOWN_DRAFT = "DRAFT"  # where the user must know it
LOOKUP = "ngram"  # a draft that looks the next tokens up in the text so far


def with_host_layers(line: str, gpu_layers: int) -> str:
    """llama-server with so many layers on the card, the head included. Weights on the host are page-locked, as copies of them
    are forecast to be (ggml-org/llama.cpp#20978)."""
    words = shlex.split(line)
    words[words.index(GPU_LAYERS) + 1 : words.index(GPU_LAYERS) + 2] = [str(gpu_layers), "--no-mmap"]
    return shlex.join(words)


def with_host_experts(line: str, layers: int) -> str:
    """llama-server with the experts of so many of the first layers on the host, page-locked, too."""
    return f"{line} --n-cpu-moe {layers} --no-mmap"  # ggml-org/llama.cpp#15077


def with_draft(line: str, engine: str, draft: str, draft_tokens: int) -> str:
    """The line with a draft model, by the id or folder of its weights; "" where the engine's flags are not known.

    draft: LOOKUP for none.
    """
    is_lookup = draft == LOOKUP
    if not line:
        return ""
    if engine == "vllm":
        # https://docs.vllm.ai/en/latest/features/speculative_decoding/draft_model/ and n_gram/
        method = {"method": "ngram", "prompt_lookup_max": 4} if is_lookup else {"method": "draft_model", "model": draft}
        config = json.dumps({**method, "num_speculative_tokens": draft_tokens})
        return f"{line} --speculative-config {shlex.quote(config)}"
    if engine == "vllm-2024":
        # https://docs.vllm.ai/en/v0.6.4/models/spec_decode.html
        model = ["[ngram]", "--ngram_prompt_lookup_max", "4"] if is_lookup else [draft]
        words = ["--speculative_model", *model, "--num_speculative_tokens", str(draft_tokens), "--use-v2-block-manager"]
        return f"{line} {shlex.join(words)}"
    if engine == "llama.cpp":
        # ggml-org/llama.cpp#22397 (April 2026): before it, --draft-max. With p-min 0 drafts do not end early.
        if is_lookup:
            return f"{line} --spec-type ngram-simple --spec-ngram-simple-size-m {draft_tokens}"
        mix = shlex.split(line)[shlex.split(line).index("--model") + 1].rpartition("-")[2]
        model_file = shlex.quote(f"{draft.rpartition('/')[2]}-{mix}")
        return f"{line} --model-draft {model_file} --spec-draft-n-max {draft_tokens} --spec-draft-p-min 0"
    return ""


def with_own_draft(line: str, engine: str, kind: str, draft_tokens: int) -> str:
    """The line with a draft that is a part of the model; "" where the engine's flags are not known.

    kind: of gpuwise.serving.own_draft. TensorRT-LLM has drafts in a file of options, not in flags.
    """
    if not line:
        return ""
    if engine == "vllm":
        # https://docs.vllm.ai/en/latest/features/speculative_decoding/mtp/ and eagle/
        model = {"model": UNKNOWN_DRAFT} if kind == "eagle3" else {}
        config = json.dumps({"method": kind, **model, "num_speculative_tokens": draft_tokens})
        return f"{line} --speculative-config {shlex.quote(config)}"
    if engine == "sglang":
        # https://docs.sglang.io/advanced_features/speculative_decoding.html; one chain of tokens, the model's own one included
        path = ["--speculative-draft-model-path", UNKNOWN_DRAFT] if kind == "eagle3" else []
        words = ["--speculative-algorithm", "EAGLE3" if kind == "eagle3" else "NEXTN", *path, "--speculative-num-steps"]
        words += [str(draft_tokens), "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", str(draft_tokens + 1)]
        return f"{line} {shlex.join(words)}"
    if engine == "llama.cpp":
        # ggml-org/llama.cpp#22673 (May 2026) and #18039
        file = f"--model-draft {UNKNOWN_DRAFT}.gguf " if kind == "eagle3" else ""
        return f"{line} {file}--spec-type draft-{kind} --spec-draft-n-max {draft_tokens} --spec-draft-p-min 0"
    return ""


def apart(line: str, engine: str, *, reads: bool) -> str:
    """The line of an instance that reads prompts, or of one that writes answers; "" where the engine's flags are not known."""
    if not line or engine != "vllm":
        return ""
    # https://docs.vllm.ai/en/latest/features/nixl_connector_usage/
    config = {"kv_connector": "NixlConnector", "kv_role": "kv_producer" if reads else "kv_consumer"}
    return f"{line} --kv-transfer-config {shlex.quote(json.dumps(config))}"


def across_machines(line: str, *, machines: int) -> str:
    """The line of an instance on several machines; "" for an engine whose flags are not known."""
    words = shlex.split(line)
    if "--tensor-parallel-size" in words:
        # https://docs.vllm.ai/en/latest/serving/parallelism_scaling/: the machines are a Ray cluster, the line runs on one.
        tokens = words.index("--max-num-batched-tokens") + 1  # of one of the batches under way, one a machine
        words[tokens] = str(int(words[tokens]) // machines)
        return f"{shlex.join(words)} --pipeline-parallel-size {machines} --distributed-executor-backend ray"
    return ""
