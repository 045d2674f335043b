"""How the throughput of a job grows with its devices."""
