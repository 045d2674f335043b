"""Records the vision models that pytorch-image-models published times of, for `benchmarks.fit` and the accuracy report.

    python -m benchmarks.record_vision --reference FOLDER --cache FOLDER [--models FILE] [--compiled]

One recording a model, image size, precision, layout and mode: about 2,600 without --compiled, a few seconds of one core each.
A recording is complete or absent, so a run that was ended carries on where it stopped. Needs the `bench` extra.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.support.published_case import Case
from benchmarks.support.published_recordings import cached, family_of, recording_path
from benchmarks.support.published_timm import timm_cases
from gpuwise.errors import GpuwiseError

EAGER_WAYS = ({"channels_last": False}, {"channels_last": True})
COMPILED_BATCHES = (8, 16)  # between which the numbers of a compiled step are linear


def recordings(reference: Path, *, compiled: bool) -> Iterator[Case]:
    """A case for each recording that the published rows need; steps in bf16 autocast are those in fp16."""
    ways = ({"compiled": True},) if compiled else EAGER_WAYS
    seen = set()
    for case in (case for way in ways for case in timm_cases(reference, **way)):
        precision = "amp-fp16" if case.strategy.precision == "amp-bf16" else case.strategy.precision
        for batch in COMPILED_BATCHES if compiled else (2,):
            usual = replace(case, strategy=case.strategy.but(precision=precision, micro_batch=batch))
            key = usual.job, usual.size, usual.strategy, usual.fast_norm
            if key not in seen:
                seen.add(key)
                yield usual


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True, help="folder of the reference measurements")
    parser.add_argument("--cache", type=Path, required=True, help="where recordings are kept")
    parser.add_argument("--models", type=Path, help="file of names of models, one a line; all without it")
    parser.add_argument("--compiled", action="store_true", help="compiled steps instead of eager ones")
    options = parser.parse_args()
    wanted = set(options.models.read_text().split()) if options.models else None
    cases = [
        case
        for case in recordings(options.reference, compiled=options.compiled)
        if (wanted is None or case.model in wanted) and not cached(case, options.cache)
    ]
    for number, case in enumerate(sorted(cases, key=lambda case: (case.job, case.size)), start=1):
        try:
            family_of(case, options.cache)
            result = "recorded"
        except (
            GpuwiseError,
            RuntimeError,
            ValueError,
            TypeError,
            AttributeError,
        ) as error:  # a model that this timm cannot make
            result = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        print(f"{number}/{len(cases)} {recording_path(case, options.cache).stem}: {result}", flush=True)


if __name__ == "__main__":
    main()
