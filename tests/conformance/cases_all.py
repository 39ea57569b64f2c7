"""Every conformance case of every port."""

from __future__ import annotations

import cases_authority
import cases_channel
import cases_clock
import cases_database
import cases_locks
from cases_kit import Case

CASES: list[Case] = [
    *cases_clock.CASES,
    *cases_locks.CASES,
    *cases_channel.CASES,
    *cases_database.CASES,
    *cases_authority.CASES,
]
