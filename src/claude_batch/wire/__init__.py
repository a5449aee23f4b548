"""Anthropic's Message Batches API at the wire level; only this package handles its JSON."""
