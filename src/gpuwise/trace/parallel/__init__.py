"""One rank of several, composed from the trace of a rank alone."""
