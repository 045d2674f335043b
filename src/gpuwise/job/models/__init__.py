"""Reference models: the published architectures in plain PyTorch, sizes as keyword arguments.

Every model builds on `meta`, and no shape depends on data, so that a step can be recorded without a device.
"""
