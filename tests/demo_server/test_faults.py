"""Faults on order: each makes what it says, and the log tells it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tabhelm.testing import wait_for
from tabhelm_build.demo_server import DemoServer

from .conftest import Writer


class Sending(threading.Thread):
    """A write that takes its time."""

    def __init__(self, writer: Writer, *payloads: Any) -> None:
        super().__init__(daemon=True)
        self._writer, self._payloads = writer, payloads
        self.answer: httpx.Response | None = None
        self.start()

    def run(self) -> None:
        self.answer = self._writer.send(*self._payloads)

    def status(self) -> int:
        self.join(10)
        assert self.answer is not None, "no answer came"
        return self.answer.status_code


def outcomes(server: DemoServer, writer: Writer) -> list[tuple[Any, bool]]:
    return [(e["outcome"], e["answered"]) for e in server.requests() if e["resource"] == writer.resource]


def payloads(server: DemoServer, writer: Writer) -> list[Any]:
    return [effect["payload"] for effect in server.effects() if effect["resource"] == writer.resource]


async def test_a_held_write_of_an_old_leader_is_late_and_refused(
    server: DemoServer, writer: Callable[..., Writer]
) -> None:
    old, new = writer(epoch=1), writer(epoch=2, owner="bob")
    server.faults(hold=True, count=1)
    late = Sending(old, "late")
    await wait_for(lambda: server.held() == 1, 10, "the write is held")
    assert outcomes(server, old) == [("held", False)]
    assert new.send("new").status_code == 200, "only the first was to be held"
    server.faults(release=True)
    assert late.status() == 409
    assert outcomes(server, old) == [(409, True), (200, True)]
    assert payloads(server, old) == ["new"]


async def test_a_held_write_is_applied_though_its_sender_is_gone(
    server: DemoServer, writer: Callable[..., Writer]
) -> None:
    ann = writer()
    server.faults(hold=True)
    with pytest.raises(httpx.ReadTimeout):
        ann.client.post(f"{server.url}/api/operations", **ann.request("orphan"), timeout=httpx.Timeout(10, read=1))
    ann.client.close()
    await wait_for(lambda: server.held() == 1, 10, "the write is held")
    server.faults()
    assert server.held() == 1, "{} ends the faults for later requests; what is held stays"
    server.faults(release=True)
    await wait_for(lambda: payloads(server, ann) == ["orphan"], 10, "the orphan is applied")
    await wait_for(lambda: outcomes(server, ann)[0][0] == 200, 10, "its outcome is logged")


def test_an_answer_is_dropped_after_the_commit(server: DemoServer, writer: Callable[..., Writer]) -> None:
    ann = writer()
    server.faults(drop_answers=True, count=1)
    request = ann.request("once")
    with pytest.raises(httpx.RemoteProtocolError):
        ann.client.post(f"{server.url}/api/operations", **request)
    assert payloads(server, ann) == ["once"]
    assert outcomes(server, ann) == [(200, False)]
    again = ann.client.post(f"{server.url}/api/operations", json=request["json"], headers=ann.request()["headers"])
    assert [result["status"] for result in again.json()["results"]] == ["duplicate"]
    assert payloads(server, ann) == ["once"]


def test_an_answer_breaks_off_in_its_midst(server: DemoServer, writer: Callable[..., Writer]) -> None:
    ann = writer()
    server.faults(cut_answers=True, count=1)
    with ann.client.stream("POST", f"{server.url}/api/operations", **ann.request("once")) as answer:
        assert answer.status_code == 200
        read = b""
        with pytest.raises(httpx.RemoteProtocolError):
            for part in answer.iter_raw():
                read += part
    whole = int(answer.headers["content-length"])
    assert len(read) == whole // 2 > 0
    assert payloads(server, ann) == ["once"]
    assert outcomes(server, ann) == [(200, False)]
    assert ann.send("next").status_code == 200


def test_only_requests_that_hold_a_text_are_touched(server: DemoServer, writer: Callable[..., Writer]) -> None:
    ann = writer()
    server.faults(status=500, containing="poison")
    assert [ann.send(each).status_code for each in ("poison", "fine", "poison")] == [500, 200, 500]
    assert payloads(server, ann) == ["fine"]


async def test_a_stalled_write_gets_no_answer_and_is_not_applied(
    server: DemoServer, writer: Callable[..., Writer]
) -> None:
    ann = writer()
    server.faults(stall=True, count=1)
    with pytest.raises(httpx.ReadTimeout):
        ann.client.post(f"{server.url}/api/operations", **ann.request("x"), timeout=httpx.Timeout(10, read=1))
    await wait_for(lambda: outcomes(server, ann) == [("stalled", False)], 10, "it is stalled")
    assert payloads(server, ann) == []
    assert ann.send("y").status_code == 200


def test_a_delayed_write_is_applied_later(server: DemoServer, writer: Callable[..., Writer]) -> None:
    ann = writer()
    server.faults(delay_ms=150, count=1)
    began = time.monotonic()
    assert ann.send("x").status_code == 200
    assert time.monotonic() - began >= 0.15
    assert payloads(server, ann) == ["x"]


@pytest.mark.parametrize(
    ("fault", "body", "headers"),
    [
        ({"body": "<p>Sign in</p>"}, b"<p>Sign in</p>", {"content-type": "text/html; charset=utf-8"}),
        ({"retry_after_s": 0.5}, b"", {"retry-after": "0.5"}),
        ({"location": "/blank"}, b"", {"location": "/blank"}),
        ({"status": 500}, b"", {"content-type": "application/json"}),
        ({"status": 429, "retry_after_s": 2}, b"", {"retry-after": "2"}),
        ({"status": 200, "body": "<p>Sign in</p>"}, b"<p>Sign in</p>", {"content-type": "text/html; charset=utf-8"}),
        ({"status": 200, "body": {"results": []}}, b'{"results": []}', {"content-type": "application/json"}),
        ({"status": 302, "location": "/blank"}, b"", {"location": "/blank"}),
        ({"status": 204}, b"", {}),
    ],
)
def test_any_answer_can_be_ordered(
    server: DemoServer,
    writer: Callable[..., Writer],
    fault: dict[str, Any],
    body: bytes,
    headers: dict[str, str],
) -> None:
    ann = writer()
    status = fault.get("status", 302 if "location" in fault else 503 if "retry_after_s" in fault else 200)
    server.faults(**fault)
    for _ in range(2):
        answer = ann.send("x")
        assert (answer.status_code, answer.content) == (status, body)
        assert headers.items() <= dict(answer.headers).items()
    server.faults()
    assert payloads(server, ann) == []
    assert ann.send("x").status_code == 200
    assert outcomes(server, ann) == [(status, True)] * 2 + [(200, True)]


def test_faults_touch_as_many_requests_as_were_counted(server: DemoServer, writer: Callable[..., Writer]) -> None:
    ann = writer()
    assert server.faults(status=503, count=2) == {"held": 0, "faults": {"status": 503, "count": 2}}
    assert [ann.send().status_code for _ in range(3)] == [503, 503, 200]
    assert server.faults() == {"held": 0, "faults": {}}


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ({"dealy_ms": 5}, "there is no fault 'dealy_ms'"),
        ({"delay_ms": "5"}, "delay_ms must be a number"),
        ({"delay_ms": -1}, "delay_ms must be a number"),
        ({"status": 99}, "status must be"),
        ({"count": 0}, "count must be"),
        ({"count": True}, "count must be"),
        ({"hold": 1}, "hold must be true or false"),
        ({"release": "yes"}, "release must be true or false"),
        ({"location": 3}, "location must be a text"),
        ({"resource": 3}, "resource must be a text"),
    ],
)
def test_mistakes_are_named(server: DemoServer, fault: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        server.faults(**fault)
    assert server.faults() == {"held": 0, "faults": {}}


def test_pages_of_other_sites_cannot_order_faults(server: DemoServer) -> None:
    answer = httpx.post(f"{server.url}/api/faults", content='{"status": 500}', verify=False, trust_env=False)
    assert answer.status_code == 415
    assert server.faults() == {"held": 0, "faults": {}}


def test_faults_of_one_resource_leave_the_others_alone(server: DemoServer, writer: Callable[..., Writer]) -> None:
    ann, bob = writer(), writer(owner="bob")
    bob.resource += ":other"
    server.faults(status=503, resource=ann.resource, count=1)
    assert bob.send().status_code == 200
    assert [ann.send().status_code for _ in range(2)] == [503, 200]
    assert server.faults() == {"held": 0, "faults": {}}


def test_a_request_is_delivered_twice(server: DemoServer, writer: Callable[..., Writer]) -> None:
    ann = writer()
    server.faults(twice=True, count=1)
    answer = ann.send("once")
    assert answer.status_code == 409, "the answer is that of the second time, when the token is used up"
    assert payloads(server, ann) == ["once"]
    assert ann.send("next").status_code == 200


async def test_a_copy_of_a_request_comes_later(server: DemoServer, writer: Callable[..., Writer]) -> None:
    old, new = writer(epoch=1), writer(epoch=2, owner="bob")
    server.faults(echo_ms=200, count=1)
    assert old.send("once").status_code == 200
    assert new.send("newer").status_code == 200

    def echoes() -> list[dict[str, Any]]:
        return [entry for entry in server.requests() if entry.get("echo") and entry["resource"] == old.resource]

    await wait_for(
        lambda: [(e["outcome"], e["answered"]) for e in echoes()] == [(409, False)], 10, "the copy is refused"
    )
    assert payloads(server, old) == ["once", "newer"]
