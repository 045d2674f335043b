"""build: a job and a strategy made into the program of one rank, run and traced alike."""
