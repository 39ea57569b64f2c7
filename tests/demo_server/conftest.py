"""A demo server in its own process, with two small folders as bundles, and a client that writes to its receiver."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tabhelm.fencing.http_form import token_header
from tabhelm.fencing.token import FencingToken
from tabhelm_build.demo_server import DemoServer

FILES = {
    "tabhelm.mjs": b"export const join = 1;",
    "manifest.json": b"{}",
    "snapshot.bin.gz": b"\x1f\x8b snapshot",
    "tabhelm-0.1.0-py3-none-any.whl": b"PK wheel",
    "pyodide/pyodide.asm.wasm": b"\0asm" + bytes(3_000_000),
    "pyodide/pyodide.mjs": b"export {};",
    "pyodide/python_stdlib.zip": b"PK zip",
}


@dataclass
class Writer:
    """Writes as one owner of one epoch; each write carries the next token."""

    url: str
    epoch: int = 1
    owner: str = "ann"
    resource: str = "app:job"
    seq: int = 0
    # No TLS here, and making its context would take longer than the tests.
    client: httpx.Client = field(default_factory=lambda: httpx.Client(verify=False, trust_env=False, timeout=10))

    def request(self, *payloads: Any, partition: str = "p") -> dict[str, Any]:
        """The parts of a write: operation ids are made of the owner and the place in the batch."""
        self.seq += 1
        token = FencingToken("d0", self.resource, self.epoch, "lane", self.seq, self.owner)
        operations = [
            {"op_id": f"{self.owner}-{self.seq}-{number}", "partition": partition, "payload": payload}
            for number, payload in enumerate(payloads)
        ]
        return {"json": {"operations": operations}, "headers": {"fencing-token": token_header(token)}}

    def send(self, *payloads: Any) -> httpx.Response:
        return self.client.post(f"{self.url}/api/operations", **self.request(*payloads))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    (folder.parent / "secret.txt").write_text("not to be served")
    return folder


@pytest.fixture(scope="module")
def running(bundle: Path) -> Iterator[DemoServer]:
    with DemoServer(bundle, second_bundle=bundle) as server:
        yield server


@pytest.fixture
def server(running: DemoServer) -> Iterator[DemoServer]:
    """One server for the tests of a module; each ends its faults. They write to resources of their own."""
    yield running
    running.faults(release=True)


@pytest.fixture
def writer(server: DemoServer, request: pytest.FixtureRequest) -> Iterator[Callable[..., Writer]]:
    """Makes writers on a resource that no other test uses."""
    with contextlib.ExitStack() as stack:

        def make(**fields: Any) -> Writer:
            made = Writer(server.url, resource=f"app:{request.node.name[:80]}", **fields)
            made.owner = f"{made.owner}-{request.node.name[:80]}"
            stack.enter_context(made.client)
            return made

        yield make
