"""--memory-plot, --roofline-plot, --plot and --timeline: pictures of a step and of a curve, in a file or in the terminal."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gpuwise.cli.options import Function
from gpuwise.errors import InputError
from gpuwise.report.picture import SUFFIXES, check_picture

if TYPE_CHECKING:
    from gpuwise.cost.memory.timeline import Timeline
    from gpuwise.cost.roofline import Roofline
    from gpuwise.cost.timeline.step import StepTimeline
    from gpuwise.plan.pareto import ParetoFront
    from gpuwise.plan.scaling.curve import ScalingCurve
    from gpuwise.serving.forecast import ServingForecast


def memory_plot_option(function: Function) -> Function:
    return click.option(
        "--memory-plot", metavar="FILE", help="Memory over the step as a picture: FILE.svg, FILE.png, or - for text."
    )(function)


def roofline_plot_option(function: Function) -> Function:
    return click.option(
        "--roofline-plot", metavar="FILE", help="Kernels under the roofs of the device: FILE.svg, FILE.png, or - for text."
    )(function)


def scaling_plot_option(function: Function) -> Function:
    return click.option("--plot", metavar="FILE", help="The curve as a picture: FILE.svg, or - for text.")(function)


def front_plot_option(function: Function) -> Function:
    return click.option(
        "--plot", metavar="FILE", help="Time, money and energy of the plans as a picture: FILE.svg, FILE.png, or - for text."
    )(function)


def serving_plot_option(function: Function) -> Function:
    return click.option(
        "--plot", metavar="FILE", help="Dollars a million tokens over the rate as a picture: FILE.svg, FILE.png, or - for text."
    )(function)


def timeline_option(function: Function) -> Function:
    return click.option(
        "--timeline",
        metavar="FILE",
        help="The step over time: FILE.svg, FILE.json for Perfetto and chrome://tracing, or - for text.",
    )(function)


def check_plot(path: str, *, flag: str, as_json: bool, suffixes: Sequence[str] = SUFFIXES) -> str:
    """The path as it stands whatever working folder the job changes to; - stays -.

    Raises InputError before any work where the picture could not be shown.
    """
    if path != "-":
        check_picture(path, flag, suffixes)
    elif as_json:
        raise InputError(f"{flag} - prints text, and --json nothing but JSON.", [f"{flag} picture.svg"])
    return path if path == "-" else os.path.abspath(path)


def show_memory(timeline: Timeline, path: str) -> None:
    """Prints the picture, or writes it and says where."""
    from gpuwise.report.memory_picture import save_picture, text_picture

    if path == "-":
        click.echo(text_picture(timeline))
    else:
        click.echo(f"memory picture written to {save_picture(timeline, path)}", err=True)


def show_roofline(roofline: Roofline, path: str) -> None:
    """Prints the picture, or writes it and says where."""
    from gpuwise.report.roofline_picture import save_picture, text_picture

    if path == "-":
        click.echo(text_picture(roofline))
    else:
        click.echo(f"roofline written to {save_picture(roofline, path)}", err=True)


def show_scaling(curve: ScalingCurve, path: str) -> None:
    """Prints the picture, or writes it and says where."""
    from gpuwise.report.scaling_picture import save_picture, text_picture

    if path == "-":
        click.echo(text_picture(curve))
    else:
        click.echo(f"scaling curve written to {save_picture(curve, path)}", err=True)


def show_front(front: ParetoFront, path: str) -> None:
    """Prints the picture, or writes it and says where."""
    from gpuwise.report.pareto_picture import save_picture, text_picture

    if path == "-":
        click.echo(text_picture(front))
    else:
        click.echo(f"Pareto front written to {save_picture(front, path)}", err=True)


def show_prices(forecast: ServingForecast, path: str) -> None:
    """Prints the picture, or writes it and says where."""
    from gpuwise.report.serving_picture import save_picture, text_picture

    if path == "-":
        click.echo(text_picture(forecast))
    else:
        click.echo(f"prices by rate written to {save_picture(forecast, path)}", err=True)


def show_timeline(timeline: StepTimeline, path: str) -> None:
    """Prints the timeline, or writes it and says where."""
    from gpuwise.report.timeline_picture import save_timeline, text_timeline

    if path == "-":
        click.echo(text_timeline(timeline))
    else:
        click.echo(f"timeline written to {save_timeline(timeline, path)}", err=True)
