"""What ``test_values.py`` runs inside the page's interpreter. Shipped there as text and called by name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tabhelm.browser import browser_ports
from tabhelm.errors import DatabaseError
from tabhelm.ports import Database, Opaque, Schema, Store, Transaction

js: Any = import_module("js")
PORTS = browser_ports(import_module("tabhelm_desk").LockDesk.new())
SCHEMA = Schema(1, (Store("kept", "id"),))


def opened() -> Database:
    return PORTS.databases.database(f"test:values:{PORTS.entropy.token_bytes(6).hex()}", SCHEMA)


async def through_the_database(values: Any) -> Any:
    """A JavaScript object of values, each of which went through ``put``, ``get_all``, ``put`` and ``get``."""
    database = opened()
    names = [str(name) for name in js.Object.keys(values)]

    async def write(tx: Transaction) -> None:
        await tx.add_all("kept", [{"id": name, "value": Opaque(js.Reflect.get(values, name))} for name in names])

    async def move(tx: Transaction) -> None:
        await tx.put_all("kept", [{**record, "moved": True} for record in await tx.get_all("kept")])

    async def read(tx: Transaction) -> list[Any]:
        return [await tx.get("kept", name) for name in names]

    await database.transaction(["kept"], "readwrite", write)
    await database.transaction(["kept"], "readwrite", move)
    found = js.Object.new()
    for name, record in zip(names, await database.transaction(["kept"], "readonly", read), strict=True):
        assert record["moved"] is True
        js.Reflect.set(found, name, record["value"].value)
    database.close()
    return found


async def refused(value: Any) -> str:
    """What storing a value that cannot be cloned is told, and that nothing of the transaction was written."""
    database = opened()

    async def write(tx: Transaction) -> None:
        await tx.put("kept", {"id": "good"})
        await tx.add_all("kept", [{"id": "also good"}, {"id": "bad", "value": Opaque(value)}])

    async def count(tx: Transaction) -> int:
        return await tx.count("kept")

    told = "taken"
    try:
        await database.transaction(["kept"], "readwrite", write)
    except DatabaseError as error:
        told = str(error)
    assert await database.transaction(["kept"], "readonly", count) == 0
    database.close()
    return told


async def python_values() -> str:
    """Python data that JavaScript keeps, read again as Python data."""
    database = opened()
    loop: dict[str, Any] = {"name": "loop"}
    loop["self"] = loop
    values: list[Any] = [{"bytes": b"\x00\xff", "list": [1, 2.5, "x", None, True], "deep": {"a": {"b": []}}}, loop]

    async def write(tx: Transaction) -> None:
        await tx.put_all("kept", [{"id": at, "value": Opaque(value)} for at, value in enumerate(values)])

    async def read(tx: Transaction) -> list[Any]:
        return [record["value"].python() for record in await tx.get_all("kept")]

    await database.transaction(["kept"], "readwrite", write)
    plain, again = await database.transaction(["kept"], "readonly", read)
    assert plain == values[0], f"got {plain}"
    assert again["self"] is again and again["name"] == "loop", f"got {again}"
    database.close()
    return "as they were"


async def persistence() -> dict[str, Any]:
    """What the browser says of keeping this origin's storage."""
    estimate = await PORTS.storage.estimate()
    return {
        "persisted": await PORTS.storage.persisted(),
        "persist": await PORTS.storage.persist(),
        "usage": estimate.usage,
        "quota": estimate.quota,
    }
