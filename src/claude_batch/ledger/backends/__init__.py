"""The databases that a ledger can be stored in, behind one interface; no dialect elsewhere."""
