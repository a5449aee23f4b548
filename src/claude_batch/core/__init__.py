"""What every other room shares: errors, states, durations, settings, ids and usage."""
