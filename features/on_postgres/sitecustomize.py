"""Processes that scenarios start have their ledgers on the server too."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

import ledgers_on_postgres

ledgers_on_postgres.begin()
