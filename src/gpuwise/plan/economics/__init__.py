"""The calendar time and money of a run."""
