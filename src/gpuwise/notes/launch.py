"""Notes on launches: graces, and what a target assumes."""

from __future__ import annotations

from gpuwise.notes.note import kind_of_note
from gpuwise.units import format_duration


@kind_of_note(flag="--grace")
def grace_raised(*, save_s: float, default_s: float, grace_s: float) -> str:
    """That a file demands more time between signal and kill than the target gives by itself."""
    return (
        f"a stop takes up to {format_duration(save_s)} to save; the target kills after {format_duration(default_s)} unless its "
        f"file says otherwise, so the file demands {format_duration(grace_s)}"
    )


@kind_of_note(flag="--grace")
def time_reserved(*, save_s: float, reserved_s: float) -> str:
    """That a target kills without a signal, so that the run ends by itself before. reserved_s: kept back for the last save."""
    return (
        f"a stop takes up to {format_duration(save_s)} to save, and nothing announces the end: the run ends by itself "
        f"{format_duration(reserved_s)} before it"
    )


@kind_of_note()
def grace_of_site(*, save_s: float) -> str:
    """That the time between a preemption and the kill is the site's, which no file can change."""
    return (
        f"a stop takes up to {format_duration(save_s)} to save: a preemption must leave as much (the partition's GraceTime, in "
        "`scontrol show partition`), or only the periodic checkpoints count"
    )


@kind_of_note()
def only_periodic_checkpoints(*, save_s: float, grace_s: float, interval_s: float) -> str:
    """That a save does not fit between the signal and the kill. interval_s: between checkpoints; 0 where the run chooses."""
    every = f", every {format_duration(interval_s)}" if interval_s else ""
    return (
        f"a save takes up to {format_duration(save_s)}, and the machine ends {format_duration(grace_s)} after its notice: "
        f"only the periodic checkpoints count{every}"
    )


@kind_of_note(flag="--run")
def assumed_shared_folder(*, folder: str) -> str:
    """That all machines are assumed to see the same folder."""
    return f"assumed that every machine sees the folder of the run, {folder}, as one shared folder"


@kind_of_note(flag="--install")
def assumed_installed(*, package: str) -> str:
    """What is assumed to be installed there, or what pip gets."""
    return f"assumed that pip finds {package} there" if package else "assumed that the target's Python has gpuwise with PyTorch"


@kind_of_note()
def runs_on_each_machine(*, machines: int) -> str:
    """That the user starts the script on each machine."""
    return f"the script starts the ranks of one machine: run it on each of the {machines}"


@kind_of_note(flag="--time-limit")
def session_of_notebook(*, session_s: float, begins: str) -> str:
    """How long a session of a notebook trains. begins: how a session is begun in a browser; "" where a client does it."""
    how = f"; to begin one, {begins}" if begins else ""
    return f"each session trains up to {format_duration(session_s)}, saves, and the next goes on{how}"


@kind_of_note(flag="--restarts")
def restarts_not_counted(*, tool: str, lasts: str) -> str:
    """That a tool does not count restarts. lasts: how long it tries again after an interruption."""
    return (
        f"{tool} counts no restarts: it tries again for {lasts} after each interruption or failure; --restarts 0 turns that off"
    )


@kind_of_note()
def killed_at_once() -> str:
    """That Ray ends its workers without a signal."""
    return "`ray job stop`, and the loss of a worker, end all ranks at once: only the periodic checkpoints count there"
