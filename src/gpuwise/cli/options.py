"""Flags that several verbs share, and what completes them. Values go to gpuwise.api as typed; it alone checks them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from gpuwise.cli.stdout import json_alone
from gpuwise.strategy import ADAPTERS, MODES, OFFLOADS, OPTIMIZER_KERNELS, OPTIMIZERS, PRECISIONS, RECOMPUTES

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def complete_job(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Presets, then files."""
    from gpuwise.trace.presets.table import PRESETS

    names = [CompletionItem(name) for name in sorted(PRESETS) if name.startswith(incomplete)]
    return names or [CompletionItem(incomplete, type="file")]


def complete_devices(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Chip ids; after a comma, the next one."""
    from gpuwise.hardware import load_catalog

    before, comma, last = incomplete.rpartition(",")
    names = [*sorted(load_catalog().chips), "cpu", "here"]
    return [CompletionItem(before + comma + name) for name in names if name.startswith(last)]


class JobCommand(click.Command):
    """A verb with a JOB: its help ends with the presets."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from gpuwise.trace.presets.table import PRESETS

        with formatter.section("Presets"):
            formatter.write_text(", ".join(PRESETS))


def job_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("job", metavar="JOB", shell_complete=complete_job)(function)


def on_option(help: str, *, required: bool = True, metavar: str = "DEVICE") -> Decorator:
    return click.option("--on", required=required, metavar=metavar, help=help, shell_complete=complete_devices)


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, callback=_keep_stdout,
                        help="JSON on stdout, and nothing else there.")(function)  # fmt: skip


def _keep_stdout(ctx: click.Context, param: click.Parameter, as_json: bool) -> bool:
    if as_json:
        ctx.with_resource(json_alone())
    return as_json


_STRATEGY: dict[str, Decorator] = {
    "micro_batch": click.option("--micro-batch", type=int, metavar="N", help="Samples a forward pass of one device."),
    "accumulate": click.option("--accumulate", type=int, metavar="N", help="Micro-batches before an optimizer step."),
    "mesh": click.option("--mesh", metavar="AXES", help="How devices share the work: dp=8, or dp_shard=8."),
    "seq_len": click.option("--seq-len", type=int, metavar="N", help="Tokens a sample."),
    "image_size": click.option("--image-size", type=int, metavar="N", help="Height and width of images, in pixels."),
    "precision": click.option("--precision", type=click.Choice(PRECISIONS), help="Number formats of the arithmetic."),
    "recompute": click.option("--recompute", type=click.Choice(RECOMPUTES), help="Activations made again in backward."),
    "optimizer": click.option("--optimizer", type=click.Choice(OPTIMIZERS), help="Instead of the job's own."),
    "optimizer_kernels": click.option("--optimizer-kernels", type=click.Choice(OPTIMIZER_KERNELS),
                                      help="How the update is launched (fused where PyTorch has it)."),
    "optimizer_in_backward": click.option("--optimizer-in-backward", is_flag=True, default=None,
                                          help="Update each parameter as soon as its gradient is there."),
    "keep_gradients": click.option("--keep-gradients", is_flag=True, default=None,
                                   help="Set gradients to zero after a step instead of freeing them."),
    "offload": click.option("--offload", type=click.Choice(OFFLOADS), help="What lives in host memory."),
    "adapter": click.option("--adapter", type=click.Choice(ADAPTERS),
                            help="Train low-rank additions to frozen weights; qlora holds those in 4 bits."),
    "adapter_rank": click.option("--adapter-rank", type=int, metavar="N", help="Rank of the additions (16)."),
    "channels_last": click.option("--channels-last", is_flag=True, default=None,
                                  help="Images and convolutions with their channels innermost in memory."),
    "mode": click.option("--mode", type=click.Choice(MODES), help="A training step (default) or a forward pass."),
}  # fmt: skip


def strategy_options(*, without: Sequence[str] = ()) -> Decorator:
    """The flags that say how one rank trains, named as in gpuwise.api; those in `without` are left out."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for name, option in reversed(_STRATEGY.items()):
            if name not in without:
                function = option(function)
        return function

    return add
