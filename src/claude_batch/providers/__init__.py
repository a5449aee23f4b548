"""Providers that answer actors' requests, and the caller's view of actors, runs and results."""
