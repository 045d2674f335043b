"""Serving forecasts against published measurements."""
