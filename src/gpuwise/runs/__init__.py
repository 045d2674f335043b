"""The folder of a run as those see it who do not train: whether it goes on, and what it has taken. No PyTorch."""
