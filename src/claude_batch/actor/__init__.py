"""Actors as the YAML defines them, requests to them, and their answers."""
