"""Anthropic's Message Batches API as it is on the wire: the only room that knows its JSON."""
