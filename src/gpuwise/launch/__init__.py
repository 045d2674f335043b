"""A plan as files that other tools start: Slurm, torchrun, ssh, clouds.

A Launch says what to start; a target is a pure function from it to the text of files. Nothing is run or sent here.
`gpuwise.launch(plan, ...)` is the verb: help(gpuwise.api.launch) has its arguments.
"""
