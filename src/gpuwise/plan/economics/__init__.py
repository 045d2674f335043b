"""From the length of a run to calendar time and money."""
