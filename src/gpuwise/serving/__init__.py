"""Serving: requests that arrive, an engine that batches them, and how long each of them takes."""
