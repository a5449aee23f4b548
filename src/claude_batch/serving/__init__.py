"""What this package's local HTTP servers have in common: addresses, Host checks, start and end."""
