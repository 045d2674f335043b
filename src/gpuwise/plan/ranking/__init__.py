"""What a choice among plans rests on, as columns of NumPy: objectives, the Pareto front, chances to keep the limits."""
