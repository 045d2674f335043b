"""gpuwise serve-plan JOB --on A,B,C --rate 5/s"""

from __future__ import annotations

import click

from gpuwise.cli.options import JobCommand, job_argument, json_option, on_option


@click.command("serve-plan", cls=JobCommand, short_help="What serving a language model takes on several devices.")
@job_argument
@on_option("Devices separated by commas. h100-sxm:2 is one instance on two devices.", metavar="A,B,C")
@click.option("--rate", required=True, metavar="RATE", help="Requests of all users: 5/s, 90/min, 10k/day.")
@click.option("--slo", default="", metavar="LIMITS", help="ttft=500ms,tpot=50ms,latency=10s,share=0.99, or some of them.")
@click.option("--input", type=int, metavar="N", help="Mean tokens of a prompt.")
@click.option("--output", type=int, metavar="N", help="Mean tokens of an answer.")
@click.option("--spread", type=float, default=1.0, metavar="X", help="Standard deviation of lengths over their mean (1).")
@click.option("--prefix-hits", type=float, default=0.0, metavar="X", help="Share of each prompt in the prefix cache (0).")
@click.option("--engine", default="vllm", metavar="NAME", help="vllm (default), vllm-2024 or tensorrt-llm.")
@click.option("--precision", default="bf16", metavar="P", help="Of weights and cache: bf16 (default), fp16 or fp32.")
@json_option
def command(
    job: str,
    on: str,
    rate: str,
    slo: str,
    input: int | None,
    output: int | None,
    spread: float,
    prefix_hits: float,
    engine: str,
    precision: str,
    as_json: bool,
) -> None:
    """Instances, latencies and dollars of serving JOB, a model that generates text, at a rate of requests."""
    from gpuwise import api
    from gpuwise.cli.output import emit
    from gpuwise.report.serving import serving_report

    result = api.serve_plan(
        job,
        on=on,
        rate=rate,
        slo=slo,
        input=input,
        output=output,
        spread=spread,
        prefix_hits=prefix_hits,
        engine=engine,
        precision=precision,
    )
    emit(result, serving_report, as_json=as_json)
