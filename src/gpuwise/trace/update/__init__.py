"""The optimizer's part of a recorded step, composed: rows, rules, and recordings edited to hold them."""
