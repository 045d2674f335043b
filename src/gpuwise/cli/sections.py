"""Sections of a verb's help: settings that belong together stand together, below the verb's own ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import click

from gpuwise.plan_settings import LimitSettings, OfferSettings, SearchSettings
from gpuwise.serving_settings import ArrivalSettings, ForwardSettings, ModeSettings
from gpuwise.step_settings import HostKeywords, ParallelSettings, Setting, Techniques, WorkSettings, flag_of, settings_of

Function = TypeVar("Function", bound=Callable[..., None])

SECTIONS: dict[type, str] = {
    LimitSettings: "Limits",
    OfferSettings: "Offers",
    SearchSettings: "Search",
    WorkSettings: "How much is trained",
    Techniques: "How a step is computed",
    ParallelSettings: "How several devices share a step",
    HostKeywords: "The host that feeds the device",
    ArrivalSettings: "How requests come",
    ModeSettings: "Other ways of serving",
    ForwardSettings: "Models of one forward pass",
}


class Decorator(Protocol):
    """Adds an argument or a flag to the function of a verb."""

    def __call__(self, function: Function, /) -> Function: ...


class SettingOption(click.Option):
    """A flag made from a setting.

    Attributes:
        section: where the help shows it; "" among the verb's own flags.
    """

    def __init__(self, declarations: Sequence[str], *, kind: type, setting: Setting, section: str) -> None:
        of_value = kind if kind in (int, float) else str
        super().__init__(
            declarations,
            help=setting.help,
            default=None,
            is_flag=kind is bool,
            multiple=setting.repeatable,
            type=None if kind is bool else click.Choice(setting.choices) if setting.choices else of_value,
            metavar=None if kind is bool or setting.choices else setting.metavar,
        )
        self.section = section


def setting_option(name: str, kind: type, setting: Setting, *, section: str) -> Decorator:
    """The flag of a setting, named as the keyword."""
    flag = flag_of(name)
    off = f"/--no-{flag.removeprefix('--')}" if setting.off_switch else ""
    return click.option(flag + off, name, cls=SettingOption, kind=kind, setting=setting, section=section)


def section_of(name: str, group: type) -> str:
    """The section of a setting of a group: that of the part of the group which has it; "" where no part has."""
    names = settings_of(group).keys()
    for part, title in SECTIONS.items():
        if name in (of_part := settings_of(part).keys()) and of_part <= names:
            return title
    return ""


def write_options(params: list[click.Parameter], ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """The flags of a verb: its own ones, then those of each section in the order of SECTIONS."""
    rows: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for param in params:
        if (row := param.get_help_record(ctx)) is not None:
            rows[getattr(param, "section", "")].append(row)
    for title in ("", *SECTIONS.values()):
        if title in rows:
            with formatter.section(title or "Options"):
                formatter.write_dl(rows[title])
