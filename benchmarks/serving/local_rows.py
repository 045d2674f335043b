"""Published speeds of llama.cpp with one request at a time: which rows of the tables are runs of which device and model.

localscore.ai publishes llamafile 0.9 on nine mixes of lengths, llmfit builds of llama.cpp of 2026 on short prompts. Crowds
measured them: of repeated runs of a device and model on hosts of one kind the upper quartile stands, since what slows a run
down is the machine around the device.

llamafile 0.9 keeps keys and values in bf16 where the host's processor multiplies bf16 with AVX-512 (localscore/cmd.cpp:
X86_HAVE(AVX512_BF16)). Its GPU kernels do not multiply that type (ggml-org/llama.cpp issue 9094), and the host computes
attention, layer by layer. Such runs are of another kind.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pandas as pd

from benchmarks.serving.models import CONFIGS
from gpuwise.cost.rates import family as family_of
from gpuwise.hardware import load_catalog

# Tokens read and written by localscore's nine tests, of whose speeds it publishes the mean
# (https://www.localscore.ai/about, cmd/localscore of Mozilla-Ocho/llamafile).
MIXES = (
    (1024, 16),
    (4096, 256),
    (2048, 256),
    (2048, 768),
    (1024, 1024),
    (1280, 3072),
    (384, 1152),
    (64, 1024),
    (16, 1536),
)
SHORT = ((64, 256),)  # llmfit: short prompts, 253 written tokens on average
QUANTIZATIONS = {
    "Q4_K - Medium": "gguf-q4_k_m",
    "Q4_K_M": "gguf-q4_k_m",
    "q4_K_M": "gguf-q4_k_m",
    "Q5_K - Medium": "gguf-q5_k_m",
    "Q6_K": "gguf-q6_k",
    "Q8_0": "gguf-q8_0",
    "q8_0": "gguf-q8_0",
    "Q4_0": "gguf-q4_0",
    "Q3_K - Large": "gguf-q3_k_l",
    "F16": "gguf-f16",
}
ENGINES = {"localscore": "llamafile", "llmfit": "llama.cpp"}
# By engine: the families and devices that its figures are fitted on, and every other processor.
FITTED = {
    "llamafile": (
        ("llama-3.2-1b", "llama-3-8b"),
        (
            "NVIDIA RTX A4000",
            "NVIDIA RTX A5000",
            "NVIDIA RTX A6000",
            "NVIDIA GeForce RTX 3060",
            "NVIDIA GeForce RTX 4060 Ti",
            "AMD Radeon RX 6900 XT",
            "Apple M3 Max 12P+4E+40GPU",
            "Apple M4 4P+6E+10GPU",
        ),
    ),
    "llama.cpp": (("llama-3.2-1b", "llama-3-8b"), ("NVIDIA GeForce RTX 5070",)),
}
# Zen 4 and newer, Sapphire Rapids and newer. Designs newer than llamafile's LLVM have no name of theirs in brackets.
_WITH_BF16 = re.compile(r"\((znver[45]|sapphirerapids|graniterapids)|Ryzen (\d )?(9\d{3}|AI )|Ryzen \d 9\d{3}|EPYC 9\d\d5")
FITTED_LAUNCHES = ("llama-3.2-1b", "NVIDIA A100-SXM4-80GB")  # a card that a small model leaves waiting for its host
# Of hosts with bf16: figures of their own, fitted on devices of their own.
FITTED_BESIDE_BF16 = ("NVIDIA GeForce RTX 4090", "AMD Radeon RX 6700 XT", "AMD Radeon RX 6900 XT")
LINUX, WINDOWS, ANY = "Linux", "Windows", "–"
BF16 = ", bf16 cache"  # ends the name of a host that computes attention


@dataclass(frozen=True)
class LocalRun:
    """Repeated runs of a model on a device.

    Attributes:
        source: the table.
        kind: "NVIDIA", "AMD", "Intel", "Mac" or "CPU".
        host: kind of host of a card: LINUX or WINDOWS, with BF16 where it computes attention; ANY for others.
        device: its name in the table.
        chip: id of the catalog.
        family, format: the model, and the format of its weights.
        mixes: tokens read and written by each test.
        runs: how many there are.
        written_per_s, read_per_s: upper quartiles of the runs, tokens a second; NaN where nobody published any.
    """

    source: str
    kind: str
    host: str
    device: str
    chip: str
    family: str
    format: str
    mixes: tuple[tuple[int, int], ...]
    runs: int
    written_per_s: float
    read_per_s: float

    @property
    def engine(self) -> str:
        """Name of the engine."""
        return ENGINES[self.source]

    @property
    def is_of_launches(self) -> bool:
        """Whether the seconds to launch a kernel are fitted on it."""
        return self.engine == "llamafile" and self.host == LINUX and (self.family, self.device) == FITTED_LAUNCHES

    @property
    def is_fitted(self) -> bool:
        """Whether figures of the engine are fitted on it."""
        if self.is_of_launches:
            return True
        families, names = FITTED[self.engine]
        if self.host.endswith(BF16):
            names = FITTED_BESIDE_BF16
        return self.family in families and (self.device in names or (self.kind == "CPU" and self.device in fitted_cpus()))


@lru_cache
def _names() -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Names of the tables -> ids of the catalog, and -> memory in GB -> ids where a name is that of several chips."""
    names = tomllib.loads(Path(__file__).with_name("local_devices.toml").read_text(encoding="utf-8"))
    return names["devices"], names["by_memory_gb"]


def chip_of(device: str, memory_gb: float) -> str | None:
    """The id of a device of the tables; None where it is not known."""
    names, by_memory = _names()
    if device in by_memory and memory_gb > 0:
        return by_memory[device].get(str(round(memory_gb)))
    return names.get(device)


@lru_cache
def fitted_cpus() -> frozenset[str]:
    """Every other processor by name: hosts differ more than a few of them show."""
    cpus = (name for name, chip in _names()[0].items() if family_of(load_catalog().chip(chip)) == "cpu")
    return frozenset(sorted(cpus)[::2])


def runs(reference: Path) -> Iterator[LocalRun]:
    """The runs of the tables whose device, model and format are known here."""
    table = pd.read_csv(reference / "serving" / "local_llm.csv", low_memory=False)
    # The tables call Phi-4-mini by the family of Phi-4, which has four times its parameters.
    is_mini = (table.family == "phi-4") & table.model.str.contains("mini", case=False, na=False)
    table["family"] = table.family.where(~is_mini, "phi-4-mini")
    table["chip"] = [chip_of(device, gb) for device, gb in zip(table.device, table.device_memory_gb, strict=True)]
    usable = table.family.isin(CONFIGS) & table.quantization.isin(QUANTIZATIONS) & table.chip.notna()
    table = table[usable & table.source.isin(ENGINES) & (table.generated_tokens_per_s > 0)].copy()
    table["kind"] = [_kind(kind, device) for kind, device in zip(table.kind, table.device, strict=True)]
    hosts = zip(table.kind, table.source, table.os, table.host_cpu.fillna(""), strict=True)
    table["host"] = [host_of(kind, ENGINES[source], system, cpu) for kind, source, system, cpu in hosts]
    for (source, kind, host, device, chip, family, quantization), part in table.groupby(
        ["source", "kind", "host", "device", "chip", "family", "quantization"]
    ):
        upper = part[["generated_tokens_per_s", "prompt_tokens_per_s"]].quantile(0.75)
        yield LocalRun(
            source=source,
            kind=kind,
            host=host,
            device=device,
            chip=chip,
            family=family,
            format=QUANTIZATIONS[quantization],
            mixes=MIXES if source == "localscore" else SHORT,
            runs=len(part),
            written_per_s=float(upper.generated_tokens_per_s),
            read_per_s=float(upper.prompt_tokens_per_s),
        )


def host_of(kind: str, engine: str, system: str, cpu: str) -> str:
    """The kind of host of a run on a device of this kind.

    Arguments:
        system, cpu: the host's, as the tables have them.
    """
    if kind in ("Mac", "CPU"):
        return ANY
    host = WINDOWS if system.lower() == "windows" else LINUX
    return host + BF16 if engine == "llamafile" and _WITH_BF16.search(cpu) else host


def _kind(kind: str, device: str) -> str:
    if kind == "cpu":
        return "CPU"
    maker = next((maker for maker in ("Apple", "AMD", "Radeon", "Intel") if maker in device), "NVIDIA")
    return {"Apple": "Mac", "Radeon": "AMD"}.get(maker, maker)
