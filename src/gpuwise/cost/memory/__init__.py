"""Memory of one device: a replay of the caching allocator, the peak, and memory that is not in the trace."""
