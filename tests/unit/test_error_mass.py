"""The ranking of error mass: what is kept out counts, the largest share comes first, shares sum to one."""

import numpy as np
import pandas as pd
import pytest
from benchmarks.accuracy_report import mass_tables
from benchmarks.support.error_mass import ranked, ranking

# family, device, split, forecast / measured
ROWS = [
    ("gemm.bf16", "h100", "unseen device", 1.1),
    ("gemm.bf16", "h100", "unseen device", 1.3),
    ("gemm.bf16", "h100", "unseen shapes", 0.9),
    ("gemm.fp8", "h100", "unseen device", 2.0),
    ("gemm.fp8", "h100", "fitted", 9.0),
]
FRAME = pd.DataFrame([(*row[:3], -np.log(row[3])) for row in ROWS], columns=["family", "device", "split", "log_error"])


def test_the_largest_share_comes_first_and_fitted_rows_do_not_count():
    lines = ranked(FRAME)
    assert lines[["family", "split"]].to_numpy().tolist() == [
        ["gemm.fp8", "unseen device"],
        ["gemm.bf16", "unseen device"],
        ["gemm.bf16", "unseen shapes"],
    ]
    assert lines.share.to_numpy() == pytest.approx([1.0 / 1.5, 0.4 / 1.5, 0.1 / 1.5])
    assert lines.share.sum() == pytest.approx(1.0)
    assert lines["median"].iloc[1] == pytest.approx(0.2)
    assert lines.bias.iloc[2] == pytest.approx(-0.1)
    assert lines.rows.tolist() == [1, 2, 1]


def test_what_is_beyond_the_table_is_summed_up():
    first, *_, last = ranking(FRAME, most=1).splitlines()
    assert first.startswith("| family | device |")
    assert last == "| 2 others |  |  | 3 |  |  | 33.3% |"


def test_kernels_and_steps_have_tables_of_their_own():
    kernels = FRAME.rename(columns={"family": "kernel"}).assign(piece="gemm")
    steps = FRAME.drop(columns="family").assign(piece="vision", model="timm:resnet50")
    tables = mass_tables(pd.concat([kernels, steps], ignore_index=True), most=5)
    assert list(tables) == ["Kernels", "Whole steps"]
    assert "| gemm.fp8 | h100 | unseen device |" in tables["Kernels"]
    assert "| ResNet-50 | h100 | unseen device |" in tables["Whole steps"]
    assert list(mass_tables(kernels, most=5)) == ["Kernels"]
