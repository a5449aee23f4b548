"""Shared parts of all packages: errors, states, durations, settings, ids and usage."""
