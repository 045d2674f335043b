"""The trace of one of several ranks, composed from the trace of a single rank."""
