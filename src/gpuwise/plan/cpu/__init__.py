"""CPUs as a place to train: this one's settings, and what torch.compile costs there."""
