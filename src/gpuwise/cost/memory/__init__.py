"""Bytes on one device: allocations replayed through the caching allocator, their peak, and what the trace cannot see."""
