"""Reports: a module for each result, with a function from the result to text that rich prints. No computing here."""
