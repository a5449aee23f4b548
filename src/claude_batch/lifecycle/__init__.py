"""The steps from a request to its answer, one module for each; `engine` drives them."""
