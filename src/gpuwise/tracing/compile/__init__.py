"""A step under torch.compile: the graphs of AOTAutograd, and the kernels of Inductor."""
