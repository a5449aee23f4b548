"""Random histories: the lifecycle against a simulated API, with time that only the test moves."""
