"""A step under torch.compile: the graphs AOTAutograd makes, and the kernels Inductor would make of them."""
