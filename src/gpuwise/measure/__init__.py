"""What this machine really does: microbenchmarks and observed steps, fitted to a calibration; trials of jobs.

`gpuwise.measure(...)` is the verb: help(gpuwise.api.measure) has its arguments.
"""
