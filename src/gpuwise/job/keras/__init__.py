"""Keras 3 models on the PyTorch backend as jobs. Importing this package needs neither Keras nor PyTorch."""
