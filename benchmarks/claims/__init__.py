"""The well-known claims of this field, each held against what gpuwise computes, what a machine measured and what was
published. `python -m benchmarks.claims --help`."""
