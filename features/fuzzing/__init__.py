"""Real-shaped answers of the API, mutated, fed to everything that reads what a server sent."""
