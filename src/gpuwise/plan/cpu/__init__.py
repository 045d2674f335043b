"""Training on CPUs: settings for this machine's CPU, and the cost of torch.compile."""
