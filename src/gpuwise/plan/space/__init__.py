"""The search space on a chip: precisions, batches, meshes, and the largest micro-batch that fits."""
