"""LaunchTarget: where a plan is launched. A module of this room makes each; this one finds them by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module

from gpuwise.errors import InputError, unknown_name
from gpuwise.launch.description import Launch
from gpuwise.notes import Note

# By name, the module beside this one whose TARGET it is.
TARGETS = {
    "torchrun": "torchrun",
    "slurm": "slurm",
    "ssh": "ssh",
    "skypilot": "skypilot",
    "kubernetes": "kubernetes",
    "kubeflow": "kubeflow",
    "notebook": "notebook",
    "dstack": "dstack",
    "ray": "ray",
}


@dataclass(frozen=True)
class TargetSetting:
    """A setting that one target has: --set KEY=VALUE.

    Attributes:
        help: one line.
        pattern: regular expression that values match whole. Nothing else reaches a file of the target.
        example: a value, for errors.
        default: value without the flag; "" leaves it out of the files.
        required: whether the target needs it.
    """

    help: str
    pattern: str
    example: str
    default: str = ""
    required: bool = False


def unchanged(launch: Launch) -> tuple[Launch, tuple[Note, ...]]:
    """A launch that a target runs as it is described, with nothing to add."""
    return launch, ()


@dataclass(frozen=True)
class LaunchTarget:
    """Where a plan is launched.

    Attributes:
        name: of `--to`.
        client: the user's program that `--go` runs.
        client_source: how to install the client.
        files: the files of a launch, by path in its folder. Raises UnsupportedError for what the target cannot do.
        submit: the client's arguments, run in the folder of the launch; empty where a browser is the client.
        default_grace_s: seconds from the signal to the kill that the target gives by itself; 0 where it kills without a signal,
            None where its site decides.
        longest_grace_s: the most that its file can demand; None without a limit.
        needs_image: whether it runs containers only.
        installs: whether its machines start without gpuwise.
        restarts_failures: whether it starts a run again that failed, and not only one that was interrupted.
        keeps_machines: whether a run starts again on the machines where it ended.
        mounts: whether its files mount the folder of the run on every machine, or are refused.
        adapts: the launch within the target's own limits, and what the user should know of them.
        settings: its own settings, by name.
    """

    name: str
    client: str
    client_source: str
    files: Callable[[Launch], Mapping[str, str]]
    submit: Callable[[Launch], tuple[str, ...]]
    default_grace_s: float | None
    longest_grace_s: float | None = None
    needs_image: bool = False
    installs: bool = False
    restarts_failures: bool = True
    keeps_machines: bool = False
    mounts: bool = False
    adapts: Callable[[Launch], tuple[Launch, tuple[Note, ...]]] = unchanged
    settings: Mapping[str, TargetSetting] = field(default_factory=dict, hash=False)

    def parse_settings(self, pairs: Iterable[str]) -> dict[str, str]:
        """Values by name, with the defaults. Raises InputError or UnknownNameError naming the setting."""
        values = {name: setting.default for name, setting in self.settings.items() if setting.default}
        for pair in pairs:
            name, equals, value = pair.partition("=")
            if name not in self.settings:
                raise unknown_name(f"setting of {self.name}", name, list(self.settings), listing="docs/launch.md")
            setting = self.settings[name]
            if not equals or not re.fullmatch(setting.pattern, value):
                raise InputError(f"--set {pair!r}: {name} is {setting.help.rstrip('.')}.", [f"--set {name}={setting.example}"])
            values[name] = value
        for name, setting in self.settings.items():
            if setting.required and name not in values:
                raise InputError(f"{self.name} needs {name}: {setting.help.rstrip('.')}.", [f"--set {name}={setting.example}"])
        return values


def target(name: str) -> LaunchTarget:
    """The target of a name. Raises UnknownNameError."""
    if name not in TARGETS:
        raise unknown_name("target", name, list(TARGETS), listing="gpuwise launch --help")
    loaded: LaunchTarget = import_module(f"gpuwise.launch.{TARGETS[name]}").TARGET
    return loaded
