"""What communication between devices costs."""
