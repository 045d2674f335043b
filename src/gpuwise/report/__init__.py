"""How results are shown: a module for each, with a function from the result to what rich prints. No computing."""
