"""The search over parallel strategies: blocks are priced once, steps composed as arrays, finalists forecast alone."""
