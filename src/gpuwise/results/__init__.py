"""What the verbs return that computes nothing more: plain data without PyTorch, which `gpuwise.report` prints.

Forecasts and plans are results as well; they stay in `cost/` and `plan/`, which compute with them.
"""
