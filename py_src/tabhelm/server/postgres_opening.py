"""What every connection to PostgreSQL needs, whoever opens it: settings, and patience when there is none."""

from __future__ import annotations

import time
from typing import LiteralString

import psycopg

from tabhelm.server.store import StoreBusy

_BUSY = ("53", "57P", "58", "55P03", "25006", "08")
"""Resources used up, server shutting down, system error, lock timeout, read-only standby, connection lost."""


def settings(lock_timeout: float) -> tuple[tuple[LiteralString, tuple[str, ...]], ...]:
    """Statements for a new connection: no lock is waited for longer (seconds), and commits are durable whatever the
    database's defaults say."""
    return (
        ("SELECT set_config('lock_timeout', %s, false)", (f"{max(1, round(lock_timeout * 1000))}ms",)),
        (
            "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'",
            (),
        ),
    )


def may_pass(error: psycopg.Error) -> bool:
    """Whether the trouble is the server's: as long as it lasts, the senders' requests must wait."""
    return (error.sqlstate or "").startswith(_BUSY)


class InVain:
    """Those who came while somebody else tried to connect have waited with him: they do not try one after the other."""

    def __init__(self) -> None:
        self._ended = 0.0
        self._error: StoreBusy | None = None

    def note(self, error: StoreBusy) -> None:
        """An attempt has failed."""
        self._ended, self._error = time.monotonic(), error

    def check(self, came: float) -> None:
        """``came``: when somebody came (``time.monotonic()``) who can try now.

        Raises:
            StoreBusy: an attempt has failed since.
        """
        if self._error is not None and self._ended >= came:
            raise StoreBusy(str(self._error)) from self._error
