"""Benchmarks beside what a page would have without tabhelm, by turns in the same browser: ``python build.py bench``.

A table on standard error and one JSON object on standard output: ``{"rows": [{"name", "other", "unit", "ours",
"others", "ratio", …}], "receiver": [{"name", "per_second", …}], "missed": […], …}``, medians with lowest and highest
(see ``rows``). Absolute figures are those of one machine; what is worth comparing is the ratio. Where a goal is missed,
the exit code is 1, and each of these is told.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from e2e.bench.elections import election_rows
from e2e.bench.queues import claim_rows, enqueue_rows, flush_rows
from e2e.bench.receiver import missed_goals as receiver_misses
from e2e.bench.receiver import receiver_rows
from e2e.bench.rows import HEAD, Row
from e2e.kit import Site

from tabhelm_build.demo_server import DemoServer

NAMES = ("elections", "enqueue", "flush", "claim", "receiver")


class Progress:
    """What is being measured, on standard error."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __call__(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {text}", file=sys.stderr, flush=True)


async def run(bundle: Path, names: tuple[str, ...], say: Progress) -> tuple[list[Row], list[dict[str, Any]]]:
    """The benchmarks of these names: the rows beside another, and the receiver's own."""
    rows: list[Row] = []
    receiver: list[dict[str, Any]] = []
    for name in names:
        with DemoServer(bundle) as server:  # a fresh database for each
            site = Site(server)
            match name:
                case "elections":
                    rows += await election_rows(site, bundle, say)
                case "enqueue":
                    rows += await enqueue_rows(site, say)
                case "flush":
                    rows += await flush_rows(site, say)
                case "claim":
                    rows += await claim_rows(site, bundle, say)
                case "receiver":
                    say("the receiver alone")
                    receiver = await receiver_rows()
    return rows, receiver


def receiver_line(row: dict[str, Any]) -> str:
    """One line of the receiver's part of the table."""
    if "missing" in row:
        return f"  {row['name']:44} not measured: {row['missing']}"
    met = "met" if row["per_second"] >= row["goal"] else "MISSED"
    flat = "met" if row["growth_mib"] <= row["growth_goal_mib"] else "MISSED"
    return (
        f"  {row['name']:44} {row['per_second']:>9,} {'ops/s':6}({row['lowest']:,}–{row['highest']:,})  goal ≥"
        f" {row['goal']:,.0f}: {met}; memory {row['memory_mib']} MiB, {row['growth_mib']:+} over"
        f" {row['operations']:,} operations: {flat}"
    )


def missed_goals(rows: list[Row], receiver: list[dict[str, Any]]) -> list[str]:
    """Which goals were missed, in words."""
    missed = [
        f"{row.name} beside {row.other}: ratio {row.ratio.median:.2f}, goal {row.goal}"
        for row in rows
        if row.met is False
    ]
    return missed + [each for row in receiver for each in receiver_misses(row)]


def main(arguments: list[str] | None = None) -> int:
    """Measure and tell; the exit code."""
    parser = argparse.ArgumentParser(prog="bench", description="Benchmarks beside raw browser APIs and other queues.")
    parser.add_argument("--only", action="append", choices=NAMES, help="only this part; may be given several times")
    only = parser.parse_args(arguments).only
    bundle = Path(os.environ.get("TABHELM_DIST") or Path(__file__).resolve().parents[2] / "dist")
    rows, receiver = asyncio.run(run(bundle, tuple(only or NAMES), Progress()))
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"\nmedians of rounds taken by turns (load {load}, {os.cpu_count()} processors):", file=sys.stderr)
    if rows:
        print(HEAD, *rows, sep="\n", file=sys.stderr)
    for row in receiver:
        print(receiver_line(row), file=sys.stderr)
    missed = missed_goals(rows, receiver)
    for goal in missed:
        print(f"goal missed: {goal}", file=sys.stderr)
    told = {"rows": [{**asdict(row), "met": row.met} for row in rows], "receiver": receiver, "missed": missed}
    print(json.dumps({**told, "load": os.getloadavg(), "processors": os.cpu_count()}))
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
