"""The ledger: tables, and the few transactions that the lifecycle needs. No HTTP here."""
