"""Several ranks: the position of each in the mesh, and the parallelisms that `runtime.build` applies to its program."""
