"""Flags that several verbs share, and what completes them. Values go to gpuwise.api as typed; it alone checks them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import click
from click.shell_completion import CompletionItem

from gpuwise.cli.sections import Decorator, section_of, setting_option, write_options
from gpuwise.cli.stdout import keep_for_json
from gpuwise.step_settings import settings_of

Function = TypeVar("Function", bound=Callable[..., None])


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
    """A verb with a JOB: its help has flags by section and ends with the presets, and it shows when tracing takes a while."""

    def invoke(self, ctx: click.Context) -> object:
        from gpuwise.api.progress import tracing_shown_by
        from gpuwise.cli.tracing_progress import shown

        with tracing_shown_by(shown):
            return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_options(self.get_params(ctx), ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from gpuwise.trace.presets.table import PRESETS

        with formatter.section("Presets"):
            formatter.write_text(", ".join(PRESETS))


def job_argument(function: Function) -> Function:
    return click.argument("job", metavar="JOB", shell_complete=complete_job)(function)


def optional_job_argument(function: Function) -> Function:
    return click.argument("job", metavar="JOB", required=False, shell_complete=complete_job)(function)


def on_option(help: str, *, required: bool = True, metavar: str = "DEVICE") -> Decorator:
    """--on, whose devices may also follow several flags: --on a --on b is --on a,b."""
    return click.option(
        "--on",
        required=required,
        multiple=True,
        metavar=metavar,
        help=help,
        shell_complete=complete_devices,
        callback=_joined,
    )


def _joined(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> str | None:
    return ",".join(values) if values else None


def json_option(function: Function) -> Function:
    return click.option(
        "--json", "as_json", is_flag=True, callback=_keep_stdout, help="JSON on stdout, and nothing else there."
    )(function)


def _keep_stdout(ctx: click.Context, param: click.Parameter, as_json: bool) -> bool:
    if as_json:
        keep_for_json()
    return as_json


def settings_options(group: type, *, without: Sequence[str] = ()) -> Decorator:
    """The flags of a group of gpuwise.step_settings, named as the keywords of gpuwise.api; those in `without` are left out."""

    def add(function: Function) -> Function:
        for name, (kind, setting) in reversed(settings_of(group).items()):
            if name not in without:
                function = setting_option(name, kind, setting, section=section_of(name, group))(function)
        return function

    return add
