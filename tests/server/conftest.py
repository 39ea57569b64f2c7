"""Lets the tests here import ``receiver_kit``, and gives them its fixtures."""

from __future__ import annotations

import sys
from pathlib import Path

if str(Path(__file__).parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).parent))

from postgres_kit import postgres, postgres_database
from receiver_kit import client, database, make_client, start_process

__all__ = ["client", "database", "make_client", "postgres", "postgres_database", "start_process"]
