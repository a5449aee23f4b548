"""Prices of models, and what answers cost at them."""
