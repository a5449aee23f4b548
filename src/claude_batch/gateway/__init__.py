"""A local HTTP server that speaks the Messages API and answers each call from the ledger."""
