"""Notes on a job and on the recording of its step."""

from __future__ import annotations

from gpuwise.notes.note import kind_of_note

OF_TRAINING = ("random-parts-left-out", "pairs-of-micro-batch")  # kinds of notes that say nothing about a forward pass


@kind_of_note(flag="--seq-len")
def assumed_sequence_length(*, length: int) -> str:
    """Samples have the length that the model takes by default."""
    return f"assumed sequence length {length:,}; --seq-len changes it"


@kind_of_note(flag="--image-size")
def assumed_image_size(*, pixels: int) -> str:
    """Images have the size that the model takes by default."""
    return f"assumed images of {pixels}x{pixels} pixels; --image-size changes it"


@kind_of_note()
def assumed_sound(*, seconds: int, rate_hz: int) -> str:
    """Samples of a model that reads sound as a wave have a usual length."""
    return f"assumed {seconds} s of sound a sample, {rate_hz:,} values a second"


@kind_of_note()
def assumed_choices(*, choices: int) -> str:
    """Questions of a multiple choice have a usual number of answers."""
    return f"assumed {choices} answers a question to choose from, each with the question a sequence"


@kind_of_note()
def random_parts_left_out(*, parts: str) -> str:
    """A config has SpecAugment or LayerDrop, with which the shapes of each training step differ by chance."""
    return f"{parts} of the config is left out in training: what a step masks or skips would be another at every step"


@kind_of_note()
def pairs_of_micro_batch() -> str:
    """A contrastive loss knows the samples of one micro-batch on one device."""
    return (
        "each image is set against the texts of its micro-batch on its device: another micro-batch, accumulation or number of "
        "devices is another loss"
    )


@kind_of_note(flag="--image-size")
def assumed_image_shape(*, height: int, width: int) -> str:
    """Images have the height and width of the config."""
    return f"assumed images of {height}x{width} pixels, of the config; --image-size takes square ones"


@kind_of_note(flag="--samples")
def assumed_samples_per_epoch(*, samples: int, data_set: str) -> str:
    """An epoch has the samples of the data set that the model is usually trained on."""
    return f"assumed {samples:,} samples an epoch ({data_set}); --samples changes it"


@kind_of_note(flag="--optimizer")
def assumed_optimizer(*, optimizer: str) -> str:
    """The job names no optimizer."""
    return f"assumed the {optimizer} optimizer; --optimizer changes it"


@kind_of_note()
def assumed_balanced_routing() -> str:
    """Every expert of a mixture of experts gets as many tokens."""
    return "assumed balanced routing: every expert processes tokens x 2 / 8; an uneven router takes longer"


@kind_of_note()
def assumed_full_sequences() -> str:
    """No sample is padded."""
    return "assumed full sequences: padding would count as work"


@kind_of_note(flag="--seq-len")
def assumed_decoder_length() -> str:
    """The decoder's sequences are as long as the encoder's."""
    return "assumed a decoder as long as the encoder; --seq-len changes both"


@kind_of_note()
def tokens_of_encoder() -> str:
    """Throughput counts the tokens that the encoder reads."""
    return "tokens count the encoder's input, not the decoder's"


@kind_of_note()
def assumed_prepared_latents() -> str:
    """Of a diffusion model, the UNet alone is trained."""
    return "assumed latents and text embeddings are prepared beforehand: only the UNet runs"


@kind_of_note()
def assumed_table_sizes() -> str:
    """The embedding tables of the recommendation model are cut to a size."""
    return "assumed tables of at most 1,000,000 rows of 64 numbers (1.43 GB in fp32)"


@kind_of_note()
def assumed_dense_gradients() -> str:
    """Gradients of embedding tables are dense."""
    return "assumed dense gradients for the embedding tables"


@kind_of_note()
def no_classifier(*, model: str) -> str:
    """A model without classes gets a loss of its features."""
    return f"{model} has no classifier: its loss is the mean square of its features"


@kind_of_note()
def assumed_head(*, model: str, task: str, served: bool) -> str:
    """A config that names a model without a head gets the one that its family is pretrained with. served: with it."""
    used = "is added" if served else "is added for training; a forward pass, and serving, end with the last hidden state"
    return f"{model} names no head: that of {task} {used}"


@kind_of_note()
def another_head(*, model: str, task: str) -> str:
    """A config names a head that there are no batches for, and its model is taken with another."""
    return f"gpuwise makes no batches for {model}: the model has the head of {task} here, in place of its own"


@kind_of_note()
def text_of_multimodal(*, model: str) -> str:
    """Of a model that reads images or sound beside text, batches are text alone."""
    return f"{model} reads text alone here: its parts for images or sound are in memory, frozen, and do not run"


@kind_of_note(flag="--weights")
def quantized_config(*, method: str, weights: str) -> str:
    """A config's weights are quantized, which gpuwise does not follow. weights: of serve-plan, "" where it has none."""
    way = f"; serve-plan --weights {weights} takes them so" if weights else ""
    return f"the config's weights are quantized ({method}); they are taken whole here{way}"


@kind_of_note()
def fp16_from_bf16_recording() -> str:
    """A recording in amp-bf16 stands for amp-fp16."""
    return "amp-fp16 taken from the recording in amp-bf16, without the loss scaler's pass over the gradients"


@kind_of_note()
def attention_of_newer_gpus() -> str:
    """A recording with flash attention stands for a GPU that has none."""
    return "recorded with the attention kernels of Ampere and newer; this GPU takes others"


@kind_of_note()
def forward_alone() -> str:
    """Inference is one forward pass, without what serving adds."""
    return (
        "one forward pass over whole samples: no cache of keys and values, no generation token by token, no requests "
        "that come and go"
    )


@kind_of_note()
def reading_alone(*, job: str) -> str:
    """Throughput and price of a forward pass of a language model are of tokens that it reads."""
    return (
        "tokens are read here, none is written: their price is that of reading a prompt; what writing answers takes, where the "
        f"model generates text: gpuwise serve-plan {job} --rate 5/s"
    )


@kind_of_note()
def convolution_workspaces() -> str:
    """Workspaces of convolutions on a GPU are an upper bound."""
    return "convolution workspaces are an upper bound (copies in cuDNN's layout): cuDNN chooses its algorithm at run time"


@kind_of_note()
def recurrent_reserve() -> str:
    """What cuDNN's recurrent layers keep is a fitted formula."""
    return "what cuDNN keeps of a recurrent layer is a formula fitted to published figures of one version"


@kind_of_note()
def value_not_known(*, question: str, answer: str | float | bool, position: str = "") -> str:
    """The model asked a tensor for its value while its step was recorded; the answer is a fixed one."""
    where = f" at {position}" if position else ""
    return f"{question}{where} is data the forecast does not have; taken as {answer}"


@kind_of_note()
def assumed_detections() -> str:
    """A detection model keeps as many boxes as its own limits let through."""
    return (
        "what a detection model keeps depends on the images; taken as much as its own limits let through: every anchor passes "
        "non-maximum suppression, a pyramid's levels have equal shares of the boxes, the sampler finds its share of objects, "
        "and each proposal is one detection"
    )


@kind_of_note()
def leaves_the_device(*, position: str) -> str:
    """The job copies a tensor to the CPU, where nothing is priced."""
    return f"a tensor is copied to the CPU at {position}; what is done with it there is not priced"


@kind_of_note()
def assumed_lbfgs_evaluations(*, evaluations: int, iterations: int, history: int) -> str:
    """LBFGS evaluates the loss as often as it may at most."""
    return (
        f"assumed {evaluations} evaluations of the loss in {iterations} iterations a step of LBFGS, with a full history of "
        f"{history}; a step that converges takes fewer, its max_iter in the job changes it"
    )


@kind_of_note()
def no_virtual_accelerator(*, torch_version: str, problem: str) -> str:
    """The step was recorded with the CPU's kernels, because this PyTorch refuses the virtual accelerator."""
    return f"recorded with the CPU's kernels: the virtual accelerator does not work with PyTorch {torch_version} ({problem})"


@kind_of_note()
def assumed_one_graph() -> str:
    """torch.compile makes one graph of each part that is compiled."""
    return "assumed torch.compile takes each compiled part as one graph and fuses as Inductor's rules say"


@kind_of_note()
def not_one_graph(*, problem: str) -> str:
    """A part that cannot be compiled as one graph was recorded eagerly."""
    return (
        f"torch.compile would not take a compiled part as one graph ({problem}): its memory and time are those of the part "
        "run eagerly"
    )


@kind_of_note()
def assumed_graph_not_cut() -> str:
    """Under data parallelism a compiled graph stays whole."""
    return "assumed that the compiled graph is not cut at the buckets of gradients (torch._dynamo.config.optimize_ddp)"


@kind_of_note()
def assumed_graph_spans_blocks() -> str:
    """Sharding does not cut the graph of a model that is compiled as a whole."""
    return (
        "assumed that sharding does not cut the compiled graph at each block, although the model is compiled as a whole: its "
        "blocks are not alike"
    )
