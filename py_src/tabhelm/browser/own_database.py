"""An app's own database, with the same transactions as ours: ``tabhelm.database``."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from tabhelm.browser.clock import BrowserClock
from tabhelm.browser.database import BrowserDatabases
from tabhelm.errors import InvalidName, NotInBrowser
from tabhelm.ports.database import Database, Schema, Store


def database(name: str, stores: Iterable[Store], *, version: int = 1) -> Database:
    """An IndexedDB database of the app, opened at its first transaction.

    ``await database.transaction(stores, "readwrite", body)`` runs ``async def body(transaction)`` and returns once the
    transaction is complete. A body may await only what ``transaction`` returns: awaiting anything else would end the
    transaction, in every browser, and is refused (``ForeignAwait``). What it raises aborts the transaction.

    Args:
        name: of the database; not one of tabhelm's, which begin with ``tabhelm:``.
        stores: of this version; those that are missing are made when the version grows.
        version: grows with every change of ``stores``.

    Raises:
        NotInBrowser: this Python runs in no browser.
        InvalidName: the name is one of tabhelm's, or empty.
    """
    if sys.platform != "emscripten":
        raise NotInBrowser(
            "tabhelm.database() needs the IndexedDB of a browser: it works in Python that runs in a page"
        )
    if not name or name.startswith("tabhelm:"):
        raise InvalidName(
            f"database {name!r} is not valid: a name of the app's own that does not begin with 'tabhelm:'"
        )
    return BrowserDatabases(BrowserClock()).database(name, Schema(version, tuple(stores)))
