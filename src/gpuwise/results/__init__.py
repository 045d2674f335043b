"""Results of the verbs that are plain data, without PyTorch. `gpuwise.report` prints them.

Forecasts and plans are results too, but stay in `cost/` and `plan/`, which compute with them.
"""
