"""The cost of communication between devices."""
