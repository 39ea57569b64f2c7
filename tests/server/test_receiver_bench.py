"""The benchmark of the receiver measures what it says: a short run of it, on both databases."""

from __future__ import annotations

from e2e.bench.receiver import BATCH, SENDERS, receiver_rows

from tabhelm_build.postgres import PostgresServer


async def test_the_receivers_benchmark_runs(postgres: PostgresServer) -> None:
    rows = await receiver_rows(total=2 * BATCH * SENDERS, rounds=2)
    assert [row["name"] for row in rows] == ["receiver on SQLite", "receiver on PostgreSQL"]
    for row in rows:
        assert row["operations"] == 2 * BATCH * SENDERS
        assert 0 < row["lowest"] <= row["per_second"] <= row["highest"]
        assert 0 < row["remembered"] <= 3 * BATCH * SENDERS
