"""Costs: prices of models, and the cost of an answer's usage in nano-dollars."""
