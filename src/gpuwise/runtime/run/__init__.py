"""A run: its loop, what it works with, its folder and its account."""
