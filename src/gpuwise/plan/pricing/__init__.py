"""One price of a step: its traces composed and kept, its forecast on a cluster, the largest micro-batch that fits.

Every verb prices through StepPricer, so that none of them says another number than the others.
"""
