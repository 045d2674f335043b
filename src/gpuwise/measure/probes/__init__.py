"""Microbenchmarks, one module each: memory, matrix products, copies, collectives."""
