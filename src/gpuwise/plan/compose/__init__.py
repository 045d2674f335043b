"""Steps of thousands of strategies at once: blocks of a model are priced once, and composed to steps as arrays."""
