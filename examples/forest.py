"""A random forest on 200,000 rows: `gpuwise plan examples/forest.py:job` says what its fit takes on this machine."""

import numpy as np
from sklearn.ensemble import RandomForestClassifier

from gpuwise import ClassicalJob


def rows(n):
    random = np.random.default_rng(0)
    X = random.standard_normal((n, 20))
    return X, (X[:, 0] * X[:, 1] + X[:, 2] + random.standard_normal(n) > 0).astype(int)


job = ClassicalJob(
    estimator=lambda: RandomForestClassifier(n_estimators=50, n_jobs=-1, random_state=0),
    data=rows,
    samples=200_000,
)
