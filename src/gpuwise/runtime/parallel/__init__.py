"""Several ranks: where each one is in the mesh, and the parallelisms that `runtime.build` applies to its part of the program."""
