"""The receiver's throughput and memory: a web server in a process of its own, real HTTP, on SQLite and on PostgreSQL.

``receiver_rows()`` is a part of ``python build.py bench``; by itself: ``python -m e2e.bench.receiver``.
"""

from __future__ import annotations

import asyncio
import json
import math
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tabhelm.fencing.http_form import token_header
from tabhelm.fencing.token import FencingToken
from tabhelm.server import Effect, FencedReceiver, FenceStore, PostgresFenceStore, SqliteFenceStore
from tabhelm_build.postgres import PostgresGone, PostgresServer
from tabhelm_build.serving import ServerProcess, serve_until_stdin_ends

GOALS = {"SQLite": 2000.0, "PostgreSQL": 1000.0}
"""Operations a second, batched."""
TOTAL = 100_000
SENDERS = 4
BATCH = 100
ROUNDS = 20
"""The operations come in so many parts, each with a rate of its own."""
RETENTION = 5.0
"""Seconds: short, so that ids are forgotten while others come."""
GROWTH_GOAL = 10.0
"""MiB by which the server may grow from the first fifth of the operations to the last."""


async def receiver_rows(total: int = TOTAL, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """One row for each database: operations a second, and what the server's memory and tables came to.

    ``{"name", "per_second", "lowest", "highest", "goal", "rounds", "operations", "memory_mib", "growth_mib",
    "growth_goal_mib", "remembered"}``; the rates are median and extremes of the rounds. Without a PostgreSQL it is
    ``{"name", "missing"}``.
    """
    rows = []
    with tempfile.TemporaryDirectory(prefix="tabhelm-bench-") as folder:
        rows.append(await _row("SQLite", str(Path(folder) / "effects.db"), total, rounds))
    try:
        with PostgresServer() as server:  # as it comes: every commit reaches the disk
            rows.append(await _row("PostgreSQL", server.conninfo(), total, rounds))
    except PostgresGone as error:
        rows.append({"name": "receiver on PostgreSQL", "missing": str(error)})
    return rows


def missed_goals(row: dict[str, Any]) -> list[str]:
    """Which goals a row of ``receiver_rows`` missed, in words; none where nothing was measured."""
    if "missing" in row:
        return []
    missed = []
    if row["per_second"] < row["goal"]:
        missed.append(f"{row['name']}: {row['per_second']:,} ops/s, goal ≥ {row['goal']:,.0f}")
    if row["growth_mib"] > row["growth_goal_mib"]:
        grown = f"{row['growth_mib']:+} MiB over {row['operations']:,} operations"
        missed.append(f"{row['name']}: memory {grown}, goal ≤ {row['growth_goal_mib']:g}")
    return missed


async def _row(kind: str, address: str, total: int, rounds: int) -> dict[str, Any]:
    rates: list[float] = []
    memory: list[float] = []
    batches = math.ceil(total / (rounds * BATCH * SENDERS))
    with _server(kind, address) as server:
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            await asyncio.gather(*(_send(http, server.url, sender, 1) for sender in range(SENDERS)))  # opens everything
            for number in range(rounds):
                began = time.perf_counter()
                await asyncio.gather(
                    *(_send_many(http, server.url, sender, 2 + number * batches, batches) for sender in range(SENDERS))
                )
                rates.append(SENDERS * batches * BATCH / (time.perf_counter() - began))
                memory.append(_resident(server.pid))
    return {
        "name": f"receiver on {kind}",
        "per_second": round(statistics.median(rates)),
        "lowest": round(min(rates)),
        "highest": round(max(rates)),
        "goal": GOALS[kind],
        "rounds": rounds,
        "operations": rounds * batches * BATCH * SENDERS,
        "memory_mib": round(memory[-1], 1),
        "growth_mib": round(memory[-1] - memory[rounds // 5], 1),
        "growth_goal_mib": GROWTH_GOAL,
        "remembered": _remembered(kind, address),
    }


async def _send_many(http: httpx.AsyncClient, url: str, sender: int, first: int, batches: int) -> None:
    for seq in range(first, first + batches):
        await _send(http, url, sender, seq)


async def _send(http: httpx.AsyncClient, url: str, sender: int, seq: int) -> None:
    operations = [
        {"op_id": f"{sender}-{seq}-{n}", "partition": f"case-{n % 10}", "payload": {"kind": "rename", "id": n}}
        for n in range(BATCH)
    ]
    token = FencingToken("bench", f"bench:queue:{sender}", 1, "lane-0", seq, "tab-1")
    answer = await http.post(url, json={"operations": operations}, headers={"Fencing-Token": token_header(token)})
    results = answer.raise_for_status().json()["results"]
    if len(results) != BATCH or any(result["status"] != "committed" for result in results):
        raise RuntimeError(f"the receiver did not commit everything: {results[:3]}")


def _resident(pid: int) -> float:
    """MiB of memory; 0 where the system does not say."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def _remembered(kind: str, address: str) -> int:
    query = "SELECT count(*) FROM tabhelm_operations"
    if kind == "SQLite":
        connection = sqlite3.connect(address)
        try:
            return int(connection.execute(query).fetchone()[0])
        finally:
            connection.close()
    import psycopg

    with psycopg.connect(address) as other:
        found = other.execute(query).fetchone()
    return 0 if found is None else int(found[0])


@contextmanager
def _server(kind: str, address: str) -> Iterator[ServerProcess]:
    process = ServerProcess(["-m", "e2e.bench.receiver", kind, address])
    try:
        yield process
    finally:
        process.close()


def _serve(kind: str, address: str) -> None:
    mark = "?" if kind == "SQLite" else "%s"

    def set_up(connection: Any) -> None:
        connection.execute("CREATE TABLE IF NOT EXISTS effects (op_id TEXT, payload TEXT)")

    def apply(effect: Effect, connection: Any) -> None:
        row = effect.op_id, json.dumps(effect.payload)
        connection.execute(f"INSERT INTO effects VALUES ({mark}, {mark})", row)

    store: FenceStore[Any] = (
        SqliteFenceStore(address, setup=set_up) if kind == "SQLite" else PostgresFenceStore(address, setup=set_up)
    )
    serve_until_stdin_ends(FencedReceiver(apply, store, retention=RETENTION))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        _serve(sys.argv[1], sys.argv[2])
    else:
        print(json.dumps(asyncio.run(receiver_rows()), indent=2))
