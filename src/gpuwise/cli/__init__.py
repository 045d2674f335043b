"""The command line over gpuwise.api: one file a verb; parse, call one function, print a report."""
