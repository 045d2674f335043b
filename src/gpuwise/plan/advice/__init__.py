"""Advice on buying: cards and workstations for a mix of jobs, against each other and against renting."""
