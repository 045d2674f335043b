"""The price of a step: its traces, its forecast on a cluster, and the largest micro-batch that fits.

Every verb prices through StepPricer, so all verbs give the same number.
"""
