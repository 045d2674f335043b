"""The presets by name, with the facts that need no PyTorch: sizes, defaults, data sets.

`parameters` are the published counts; a test builds every model and compares. The models are in `job/models`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gpuwise.errors import InputError
from gpuwise.notes import Note
from gpuwise.notes import job as notes


@dataclass(frozen=True)
class PresetInfo:
    """One preset.

    Attributes:
        name: the JOB argument.
        architecture: which builder of gpuwise.job.presets makes it.
        description: one line for listings.
        parameters: the published count.
        sample_unit: what throughput counts, "sample" (the default) | "token" | "image".
        seq_len: tokens a sample where the user names none; None (the default) for models without a sequence.
        max_seq_len: positions in the position table; None (the default): there is no table, any length runs.
        context_length: most tokens that it answers with, by its published configuration; None (the default): max_seq_len.
        image_size: pixels an edge where the user names none; None (the default) for models without images.
        image_multiple: image sizes are multiples of this. Default 1.
        min_image_size: the smallest image, in pixels an edge. Default 1.
        samples: samples an epoch of the data set the model is known for; None (the default) where there is no single one.
        data_set: its name. Default "".
        optimizer: a name of gpuwise.strategy.OPTIMIZERS. Default "adamw".
        learning_rate: of that optimizer. Default 1e-3.
    """

    name: str
    architecture: str
    description: str
    parameters: int
    sample_unit: str = "sample"
    seq_len: int | None = None
    max_seq_len: int | None = None
    context_length: int | None = None
    image_size: int | None = None
    image_multiple: int = 1
    min_image_size: int = 1
    samples: int | None = None
    data_set: str = ""
    optimizer: str = "adamw"
    learning_rate: float = 1e-3

    @property
    def writes_text(self) -> bool:
        """Whether the model writes text token by token."""
        return self.architecture in _DECODERS

    def check_sizes(self, sizes: Mapping[str, int]) -> None:
        """Raises InputError for a seq_len or image_size that the model cannot take."""
        limits = {
            "seq_len": (self.seq_len, 1, self.max_seq_len or LONGEST_SEQUENCE, 1),
            "image_size": (self.image_size, self.min_image_size, LARGEST_IMAGE, self.image_multiple),
        }
        for name, value in sizes.items():
            default, low, high, multiple = limits[name]
            words, flag = name.replace("seq_len", "sequence length").replace("_", " "), f"--{name.replace('_', '-')}"
            if default is None:
                raise InputError(f"{self.name} has no {words}.", [f"leave out {flag}"])
            if not low <= value <= high or value % multiple:
                multiples = f" in multiples of {multiple}" if multiple > 1 else ""
                raise InputError(
                    f"the {words} of {self.name} must be from {low:,} to {high:,}{multiples}, got {value:,}.",
                    [f"{flag} {default}"],
                )

    def assumptions(self, named: Collection[str] = ()) -> tuple[Note, ...]:
        """Every guess behind the preset, without those for the sizes that the user names."""
        guesses = []
        if self.seq_len is not None and "seq_len" not in named:
            guesses.append(notes.assumed_sequence_length(length=self.seq_len))
        if self.image_size is not None and "image_size" not in named:
            guesses.append(notes.assumed_image_size(pixels=self.image_size))
        if self.samples is not None:
            guesses.append(notes.assumed_samples_per_epoch(samples=self.samples, data_set=self.data_set))
        guesses.append(notes.assumed_optimizer(optimizer=self.optimizer))
        return (*guesses, *_OF_ARCHITECTURE.get(self.architecture, ()))


_DECODERS = ("gpt2", "llama", "mixtral")
LONGEST_SEQUENCE = 1_048_576  # beyond any published model: a slip of the keyboard is answered at once
LARGEST_IMAGE = 16_384

# Assumptions of an architecture beside its sizes.
_OF_ARCHITECTURE: dict[str, tuple[Note, ...]] = {
    "mixtral": (notes.assumed_balanced_routing(),),
    "bert": (notes.assumed_full_sequences(),),
    "t5": (notes.assumed_decoder_length(), notes.tokens_of_encoder()),
    "unet": (notes.assumed_prepared_latents(),),
    "dlrm": (notes.assumed_table_sizes(), notes.assumed_dense_gradients()),
}


def _language(
    name: str,
    architecture: str,
    description: str,
    parameters: int,
    seq_len: int,
    max_seq_len: int | None,
    learning_rate: float,
    *,
    context_length: int | None = None,
) -> PresetInfo:
    return PresetInfo(
        name,
        architecture,
        description,
        parameters,
        sample_unit="token",
        seq_len=seq_len,
        max_seq_len=max_seq_len,
        learning_rate=learning_rate,
        context_length=context_length,
    )


def _imagenet(
    name: str,
    architecture: str,
    description: str,
    parameters: int,
    *,
    min_image_size: int,
    image_multiple: int = 1,
    optimizer: str,
    learning_rate: float,
) -> PresetInfo:
    # ILSVRC 2012 training set: 1,281,167 images (https://www.image-net.org/challenges/LSVRC/2012/).
    return PresetInfo(
        name,
        architecture,
        description,
        parameters,
        sample_unit="image",
        image_size=224,
        min_image_size=min_image_size,
        image_multiple=image_multiple,
        samples=1_281_167,
        data_set="ImageNet-1k",
        optimizer=optimizer,
        learning_rate=learning_rate,
    )


_ALL = [
    PresetInfo(
        "tabular-mlp",
        "mlp",
        "multilayer perceptron on 20 numeric columns, 2 classes",
        11_074,
        samples=10_000,
        data_set="a table of 10,000 rows",
    ),
    _imagenet(
        "alexnet",
        "alexnet",
        "AlexNet, the one-tower form",
        61_100_840,
        min_image_size=63,
        optimizer="momentum",
        learning_rate=1e-2,
    ),
    _imagenet(
        "resnet50",
        "resnet",
        "ResNet-50 (v1.5: stride in the 3x3)",
        25_557_032,
        min_image_size=64,
        optimizer="momentum",
        learning_rate=0.1,
    ),
    _imagenet(
        "vit-b16",
        "vit",
        "Vision Transformer B/16",
        86_567_656,
        min_image_size=32,
        image_multiple=16,
        optimizer="adamw",
        learning_rate=3e-4,
    ),
    _language("bert-base", "bert", "BERT base, masked-word training", 109_514_298, 512, 512, 1e-4),
    _language("bert-large", "bert", "BERT large, masked-word training", 335_174_458, 512, 512, 1e-4),
    _language("t5-base", "t5", "T5 base (v1.0), encoder and decoder", 222_903_552, 512, None, 1e-4),
    _language("gpt2", "gpt2", "GPT-2 124M", 124_439_808, 1024, 1024, 6e-4),
    _language("gpt2-medium", "gpt2", "GPT-2 355M", 354_823_168, 1024, 1024, 3e-4),
    _language("gpt2-large", "gpt2", "GPT-2 774M", 774_030_080, 1024, 1024, 2.5e-4),
    _language("gpt2-xl", "gpt2", "GPT-2 1.5B", 1_557_611_200, 1024, 1024, 2e-4),
    # context_length: max_position_embeddings of the published config.json.
    _language("llama2-7b", "llama", "Llama 2 7B", 6_738_415_616, 4096, None, 3e-4, context_length=4_096),
    _language("llama2-13b", "llama", "Llama 2 13B", 13_015_864_320, 4096, None, 3e-4, context_length=4_096),
    _language("llama3-8b", "llama", "Llama 3 8B", 8_030_261_248, 8192, None, 3e-4, context_length=8_192),
    _language("llama3-70b", "llama", "Llama 3 70B", 70_553_706_496, 8192, None, 1.5e-4, context_length=8_192),
    _language("llama3-405b", "llama", "Llama 3.1 405B", 405_853_388_800, 8192, None, 8e-5, context_length=131_072),
    _language(
        "mixtral-8x7b",
        "mixtral",
        "Mixtral 8x7B, 2 of 8 experts a token",
        46_702_792_704,
        4096,
        None,
        3e-4,
        context_length=32_768,
    ),
    PresetInfo(
        "sd15-unet",
        "unet",
        "Stable Diffusion 1.5 UNet, noise prediction",
        859_520_964,
        sample_unit="image",
        image_size=512,
        image_multiple=64,
        min_image_size=64,
        learning_rate=1e-4,
    ),
    # Criteo Kaggle Display Advertising Challenge: 45,840,617 labelled rows.
    PresetInfo(
        "dlrm",
        "dlrm",
        "DLRM on Criteo Kaggle tables, at most 1M rows each",
        357_197_121,
        samples=45_840_617,
        data_set="Criteo Kaggle",
    ),
]

PRESETS: dict[str, PresetInfo] = {info.name: info for info in _ALL}
"""All presets by name, in the order they are listed."""
