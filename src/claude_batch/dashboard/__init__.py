"""Pages that show a ledger: its runs, their requests, and what they cost. They only read it."""
