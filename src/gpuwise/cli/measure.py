"""gpuwise measure [--quick]"""

from __future__ import annotations

import click

from gpuwise.cli.failure import EXIT_INTERRUPTED
from gpuwise.cli.options import json_option
from gpuwise.cli.pictures import check_plot

FLAG = "--roofline-plot"
EXIT_NOT_KEPT = 3  # the result exists, and forecasts will not use it


@click.command("measure", short_help="What this machine really does.")
@click.option("--quick", is_flag=True, help="Fewer shapes: within a minute on two cores, instead of five.")
@click.option(FLAG, metavar="FILE", help="Roofs of datasheet and measurement as a picture: FILE.svg, FILE.png, or - for text.")
@json_option
def command(quick: bool, roofline_plot: str | None, as_json: bool) -> None:
    """What this machine really does, next to its datasheet; `gpuwise forecast JOB --on here` uses it from then on.

    Leave the machine alone meanwhile. Ctrl-C ends it early and shows what was found.
    """
    from gpuwise import api
    from gpuwise.cli.measure_progress import shown
    from gpuwise.cli.output import emit
    from gpuwise.report.measure import measure_report
    from gpuwise.report.picture import check_drawable

    if roofline_plot is not None:
        check_plot(roofline_plot, flag=FLAG, as_json=as_json)
        if roofline_plot != "-":
            check_drawable(roofline_plot, FLAG)  # now, not after the minutes it takes
    with shown(as_json=as_json) as show:
        result = api.measure(quick=quick, progress=show)
    emit(result, measure_report, as_json=as_json)
    if roofline_plot == "-":
        from gpuwise.report.machine_text import text_picture

        click.echo(f"\n{text_picture(result)}")
    elif roofline_plot is not None:
        from gpuwise.report.machine_picture import save_picture

        click.echo(f"roofline written to {save_picture(result, roofline_plot)}", err=True)
    if result.interrupted:
        raise click.exceptions.Exit(EXIT_INTERRUPTED)
    if not result.calibration:
        raise click.exceptions.Exit(EXIT_NOT_KEPT)
