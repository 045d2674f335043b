"""The scaling curve of docs/many-devices.md: its table and its picture.

    python -m benchmarks.many_devices            # prints the table
    python -m benchmarks.many_devices --write    # and replaces it in the page, with docs/figures/scaling.svg

It forecasts from a recording, within seconds: no PyTorch, no GPU. Run it again when forecasts of communication change.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gpuwise
from gpuwise.plan.scaling.curve import ScalingCurve
from gpuwise.report.forecast import scale_of
from gpuwise.report.parts import percent, rate
from gpuwise.report.scaling_picture import save_picture
from gpuwise.units import format_duration, format_usd

ROOT = Path(__file__).parents[1]
PAGE, PICTURE = ROOT / "docs" / "many-devices.md", ROOT / "docs" / "figures" / "scaling.svg"
BEGIN, END = "<!-- benchmarks.many_devices: begin -->\n", "<!-- benchmarks.many_devices: end -->\n"
JOB, ON, GLOBAL_BATCH, MICRO_BATCH = "gpt2", "a100-80gb-sxm:8x64", 512, 8
COMMAND = f"gpuwise scale {JOB} --on {ON} --global-batch {GLOBAL_BATCH} --micro-batch {MICRO_BATCH} --plot scaling.svg"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.many_devices", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="replace the table in the page, and the picture")
    options = parser.parse_args()
    curve = gpuwise.scale(JOB, on=ON, global_batch=GLOBAL_BATCH, micro_batch=MICRO_BATCH)
    part = generated(curve)
    print(part)
    if options.write:
        PAGE.write_text(with_part(PAGE.read_text(encoding="utf-8"), part), encoding="utf-8")
        save_picture(curve, PICTURE)


def generated(curve: ScalingCurve) -> str:
    """The command, the table, the conclusion and the picture in Markdown."""
    costs = [point.forecast.usd_per_million for point in curve.points if point.forecast.usd_per_million is not None]
    many, word = scale_of(min(costs) / 1e6) if costs else (1e6, "million")
    lines = [
        f"```sh\n{COMMAND}\n```\n",
        f"| devices | micro-batches | step time | throughput | efficiency | waits for communication | a {word} tokens |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for point in curve.points:
        forecast = point.forecast
        usd, efficiency = forecast.usd_per_million, point.efficiency
        cells = [
            f"{point.devices:,}",
            f"{forecast.strategy.accumulation:,}",
            format_duration(forecast.step_time_s.value),
            rate(forecast.throughput, forecast.throughput_unit),
            "does not fit" if efficiency is None else percent(efficiency),
            percent(point.communication),
            "-" if usd is None else format_usd(usd / 1e6 * many),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    conclusion = curve.conclusion[0].upper() + curve.conclusion[1:]
    picture = f"![Throughput, efficiency and cost by number of devices]({PICTURE.relative_to(PAGE.parent).as_posix()})"
    return "\n".join([*lines, "", f"{conclusion}.", "", picture, ""])


def with_part(page: str, part: str) -> str:
    """The page with its generated part replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{part}{END}{after}"


if __name__ == "__main__":
    main()
