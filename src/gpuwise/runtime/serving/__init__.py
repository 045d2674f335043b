"""A server of plain PyTorch in this process, and clients that send it a load."""
