"""The settings of `launch`: its keywords in gpuwise.api, and the command line's flags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypedDict

from gpuwise.step_settings import Setting


class LaunchSettings(TypedDict, total=False):
    """What `launch` takes beside the plan, the target and the folder."""

    run: Annotated[str | None, Setting("Folder of the run on those machines; all of them must see it.", metavar="FOLDER")]
    name: Annotated[str | None, Setting("Of the job at the target (the plan's job).", metavar="NAME")]
    image: Annotated[str | None, Setting("Container image with PyTorch.", metavar="IMAGE")]
    setup: Annotated[
        Sequence[str],
        Setting("A shell line before the training, such as 'module load cuda'. Repeatable.", repeatable=True, metavar="LINE"),
    ]
    install: Annotated[
        str | None, Setting("What pip installs there: a wheel's file or a requirement; none for nothing.", metavar="PACKAGE")
    ]
    env: Annotated[
        Sequence[str], Setting("An environment variable of the training. Repeatable.", repeatable=True, metavar="NAME=VALUE")
    ]
    include: Annotated[
        Sequence[str], Setting("A file or folder that travels beside the job's. Repeatable.", repeatable=True, metavar="PATH")
    ]
    time_limit: Annotated[float | str | None, Setting("The target's limit, such as 12h (the plan's longest).", metavar="TIME")]
    grace: Annotated[
        float | str | None, Setting("From the signal until the target kills (what the last save needs).", metavar="TIME")
    ]
    restarts: Annotated[int | None, Setting("Times that an interrupted or failed run starts again by itself.")]
    set: Annotated[
        Sequence[str],
        Setting(
            "A setting of the target, such as partition=gpu; docs/launch.md. Repeatable.", repeatable=True, metavar="KEY=VALUE"
        ),
    ]
