"""The machines for a run: offers, the user's own machines, and those that `gpuwise train` can run on."""
