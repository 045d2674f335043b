"""Many runs of one job (a hyper-parameter sweep): several on each device, on one machine or many."""
