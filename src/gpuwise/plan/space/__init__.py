"""What is worth trying on a chip: precisions, batches, meshes, and the largest micro-batch that fits."""
