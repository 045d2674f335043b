"""The piece "updates": optimizers of GPUs run at the elementwise kernels' bandwidth, in every file that has these.

Published steps cannot tell it: most ran optimizers of several passes (benchmarks.support.published_updates), and updates are a
few percent of them.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from benchmarks.fit.operators import LIKE_ELEMENTWISE, like
from benchmarks.fit.pieces import Context, Piece
from benchmarks.fit.store import Store, error_rows
from gpuwise.cost.calibration import names_of
from gpuwise.cost.rates import family

FACTOR = LIKE_ELEMENTWISE["optimizer"]


def fit(context: Context, store: Store) -> pd.DataFrame:
    """Entries and scales as the elementwise ones stand now. No rows."""
    chips = context.catalog.chips.values()
    gpus = {(level, of) for chip in chips if family(chip) == "gpu" for level, of in names_of(chip).items()}
    for key in sorted(gpus & set(store.files)):
        file = store.files[key]
        if "elementwise" in file.entries:
            store.put(*key, {"optimizer": like(file.entries["elementwise"], FACTOR)})
        elif "elementwise" in file.scale:
            store.put_scale(*key, {"optimizer": file.scale["elementwise"]})
    return error_rows("updates", "", "", np.zeros(0))


PIECE = Piece("updates", fit)
