"""Job: the user's model, batch, loss, data and optimizer, in one frozen dataclass."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from gpuwise.errors import GpuwiseError, JobError, message_of
from gpuwise.job.argument_checks import check_functions, moves_itself
from gpuwise.job.deferred_errors import checked_keywords
from gpuwise.job.dependencies import require
from gpuwise.job.job_module import job_module
from gpuwise.job.parallel import check_plan
from gpuwise.notes import Note
from gpuwise.strategy import OPTIMIZERS, StepFacts

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.utils.data import Dataset

# What a job's `batch` makes and its data, collated, give: tensors in dicts, lists, tuples or objects of the user's.
Batch: TypeAlias = Any
Generate: TypeAlias = "Callable[[nn.Module, Tensor, object], tuple[Tensor, object]]"
OptimizerFunction = Callable[["Iterable[nn.Parameter]"], "Optimizer"]
SAMPLE_UNITS = ("sample", "token", "image")
SCHEDULES = ("constant", "cosine", "linear", "wsd")


@dataclass(frozen=True)
class Job:
    """The description of what to train: model, batch, loss, data and optimizer.

    Arguments:
        model: a function that makes the plain `nn.Module`. It is called on meta, virtual and real devices, so it takes no
            arguments.
        batch: a function n -> an example batch of n samples: tensors in dicts, lists, tuples or objects, each with n as its
            first dimension.
        loss: (model, batch) -> scalar tensor to minimise, or a dict with that as "loss" and further numbers to log. May be
            None (the default) where there is a `step`.
        optimizer: a name of `gpuwise.strategy.OPTIMIZERS`, a function of the parameters, or for a job with its own `step`
            a dict of named functions of the model, each making one optimizer. Default "adamw".
        data: a function that makes the data set, whose samples, collated, look like `batch`: a map-style or iterable one
            (Hugging Face's too), a DataLoader around one, or a dict of tensors with one row a sample. None (the default):
            forecasts, and training on random numbers.
        samples: samples an epoch. None (the default): as many as `data` has, once it is opened.
        name: what reports call the job. Default "", which becomes the name in the file.
        learning_rate: learning rate of an optimizer that is set by name. Default 1e-3.
        schedule: of the learning rate, a name of `gpuwise.job.SCHEDULES` ("constant" | "cosine" | "linear" | "wsd"), or a
            function (step, steps) -> the factor of the optimizer step counted so from 0, in a run of that many. Default
            "constant".
        warmup_steps: optimizer steps over which the learning rate rises from near 0; the schedule begins, and counts, after
            them. Default 0.
        clip_norm: the largest 2-norm of all gradients together; longer ones are scaled down to it. None (the default): no
            limit.
        ema_decay: of an exponential moving average of the parameters, which is then what is evaluated and exported; between
            0 and 1. None (the default): no average.
        sample_unit: what throughput counts, "sample" (the default) | "token" | "image".
        tokens_per_sample: tokens in one sample, where the unit is "token". Default None.
        seq_len: tokens in a sequence of the example batch. None (the default): no sequences.
        image_size: pixels an edge of the images of the example batch. None (the default): no images.
        evaluate: model -> named metrics on held-out data, e.g. {"accuracy": 0.97}. None (the default): none.
        step: (context, batch) -> loss, or a dict as of `loss`: the job's own sequence of forward, backward and updates in
            place of one of each (see gpuwise.runtime.build.own_step.StepContext). Default None.
        samples_in: batch -> the number of samples in it, where first dimensions are something else: nodes of graphs, packed
            tokens, lists of tensors. Default None.
        assumptions: each guess, with the number it moves and the flag that changes it. Default none.
        tensor_parallel_plan: how tensor parallelism splits the model: module path, with * for any one name -> a word of
            `gpuwise.job.parallel.WORDS`, e.g. {"layers.*.mlp.up": "colwise", "layers.*.mlp.down": "rowwise"}. None (the
            default): the plan of a Hugging Face config, or one derived from a forward pass.
        generate: (model, tokens, cache) -> (logits of each sequence's last token, cache), for new tokens (n, count) of
            sequences whose earlier tokens are in the cache, which is None at first and any object afterwards. None (the
            default): the model does not generate.
        context_length: most tokens of a sequence that it generates. None (the default): no limit.
        forward: (model, batch) -> the answer to a request: the forward pass of mode "infer" and of serving. None (the default):
            what the model returns where the loss calls it first.

    Raises JobError when a field makes no sense.
    """

    model: Callable[[], nn.Module]
    batch: Callable[[int], Batch]
    loss: Callable[[nn.Module, Batch], Tensor | Mapping[str, Tensor]] | None = None
    optimizer: str | OptimizerFunction | Mapping[str, Callable[[nn.Module], Optimizer]] = "adamw"
    data: Callable[[], Dataset[object] | Iterable[object] | Mapping[str, Tensor]] | None = None
    samples: int | None = None
    name: str = ""
    learning_rate: float = 1e-3
    schedule: str | Callable[[int, int], float] = "constant"
    warmup_steps: int = 0
    clip_norm: float | None = None
    ema_decay: float | None = None
    sample_unit: str = "sample"
    tokens_per_sample: int | None = None
    seq_len: int | None = None
    image_size: int | None = None
    evaluate: Callable[[nn.Module], dict[str, float]] | None = None
    step: Callable[[Any, Batch], Tensor | Mapping[str, Tensor]] | None = None
    samples_in: Callable[[Batch], int] | None = None
    assumptions: tuple[str | Note, ...] = ()
    tensor_parallel_plan: Mapping[str, str] | None = None
    generate: Generate | None = None
    context_length: int | None = None
    forward: Callable[[nn.Module, Batch], object] | None = None

    def __post_init__(self) -> None:
        check_functions(vars(self))
        if self.loss is None and self.step is None:
            raise JobError(
                "a job needs a loss, or a step of its own.",
                ["write loss=lambda model, batch: ...", "write step=lambda context, batch: ..."],
            )
        for field in ("model", "batch"):
            if not callable(getattr(self, field)):
                raise JobError(
                    f"a job's {field} must be a function, got {type(getattr(self, field)).__name__}.",
                    [f"write {field}=lambda ...: ..."],
                )
        for field in ("loss", "step", "samples_in", "data", "evaluate", "generate", "forward"):
            value = getattr(self, field)
            if value is not None and not callable(value):
                raise JobError(
                    f"a job's {field} must be a function or None, got {type(value).__name__}.",
                    [f"write {field}=lambda ...: ..."],
                )
        if isinstance(self.optimizer, Mapping):
            self._check_named_optimizers(self.optimizer)
        elif not callable(self.optimizer) and self.optimizer not in OPTIMIZERS:
            raise JobError(
                f"unknown optimizer {self.optimizer!r}.", [f"one of: {', '.join(OPTIMIZERS)}", "a function of the parameters"]
            )
        if self.sample_unit not in SAMPLE_UNITS:
            raise JobError(f"unknown sample_unit {self.sample_unit!r}.", [f"one of: {', '.join(SAMPLE_UNITS)}"])
        for field in ("samples", "tokens_per_sample", "seq_len", "image_size"):
            value = getattr(self, field)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise JobError(f"a job's {field} must be a whole number above zero, got {value!r}.")
        if not 0 < self.learning_rate < float("inf"):
            raise JobError(f"a job's learning_rate must be above zero, got {self.learning_rate!r}.")
        if not callable(self.schedule) and self.schedule not in SCHEDULES:
            raise JobError(
                f"unknown schedule {self.schedule!r}.",
                [f"one of: {', '.join(SCHEDULES)}", "a function (step, steps) -> factor"],
            )
        if not isinstance(self.warmup_steps, int) or isinstance(self.warmup_steps, bool) or self.warmup_steps < 0:
            raise JobError(f"a job's warmup_steps must be a whole number from 0 on, got {self.warmup_steps!r}.")
        if self.clip_norm is not None and not 0 < self.clip_norm < float("inf"):
            raise JobError(f"a job's clip_norm must be above zero, got {self.clip_norm!r}.")
        check_plan(self.tensor_parallel_plan)
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise JobError(f"a job's ema_decay must be between 0 and 1, got {self.ema_decay!r}.", ["ema_decay=0.999"])

    def step_facts(self, *, on_cpu: bool = False, priced: bool = True) -> StepFacts:
        """The facts of this job for check_techniques, before its step is built.

        Arguments:
            on_cpu: whether the device is a CPU.
            priced: whether the step is to be forecast, not only run.
        """
        return StepFacts(
            self.name or "the job",
            on_cpu=on_cpu,
            priced=priced,
            own_step=self.step is not None,
            clips=self.clip_norm is not None,
            averages=self.ema_decay is not None,
        )

    def _check_named_optimizers(self, named: Mapping[str, object]) -> None:
        if self.step is None:
            raise JobError(
                "named optimizers need a step that says when each is used.",
                ["write step=lambda context, batch: ...", "one optimizer: a name or a function of the parameters"],
            )
        for name, make in named.items() or {"": None}.items():
            if not isinstance(name, str) or not name.isidentifier() or not callable(make):
                raise JobError(
                    f"named optimizers are a dict of names and functions of the model, got {dict(named)!r}.",
                    ['{"generator": lambda model: Adam(model.generator.parameters()), ...}'],
                )


Job.__init__ = checked_keywords(Job.__init__)  # type: ignore[method-assign]


def meta_model(job: Job) -> nn.Module:
    """The job's model on the `meta` device: shapes without memory. Raises JobError with what the model raised."""
    torch = require("torch", purpose="build a model")
    try:
        with torch.device("meta"):
            model = job_module(job.model)
    except GpuwiseError:
        raise
    except Exception as error:
        if "Cannot copy out of meta tensor" in str(error):
            raise moves_itself() from error
        raise JobError(
            f"the job's model function raised: {type(error).__name__}: {message_of(error)}.",
            ["call it by itself in Python to see where"],
        ) from error
    if not isinstance(model, torch.nn.Module):
        raise JobError(f"the job's model function must return an nn.Module, it returned {type(model).__name__}.")
    return model


def fingerprint(job: Job) -> str:
    """16 hexadecimal digits that tell one job from another, to refuse a plan made for another job.

    It covers the job's name and every parameter's name, shape and type. It is the same in every process, on every
    machine and at every sequence length; an edit that changes none of these (a comment, a learning rate, the data)
    keeps it. Raises JobError when the model cannot be built.
    """
    parameters = [[name, list(p.shape), str(p.dtype)] for name, p in meta_model(job).named_parameters()]
    return hashlib.sha256(json.dumps([job.name, parameters]).encode()).hexdigest()[:16]
