"""Two devices compete for one resource at a real lease service: one leads; it goes, whatever way; the other follows
within the lease, and what the old one still writes is refused."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from e2e.devices.kit import HEADERS, LEASE_S, Device, another, device, enter, two
from e2e.devices.site import LEASES, RECEIVER, DeviceSite
from e2e.kit import join, leader, stand, until
from playwright.async_api import Frame

from tabhelm.testing.pytest_plugin import LaunchBrowser

SLACK = 5.0
"""Seconds for a loaded machine."""
AT_ONCE_S = 8.0
"""Less than any expiry: a lease of 15 s is renewed every 5 s."""
_FRAME = """() => new Promise((loaded) => {
  const frame = document.body.appendChild(document.createElement("iframe"));
  frame.onload = loaded;
  frame.src = "/blank";
})"""


class Inside:
    """What ``join`` and ``stand`` need of a tab, in a frame."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    async def evaluate(self, js: str, arg: Any = None, *, timeout: float | None = None) -> Any:
        return await self._frame.evaluate(js, arg)


async def follows(second: Device, since: float, within: float) -> float:
    """The second leads and writes; seconds since then."""
    leading = await second.leads(above=1, timeout=within + 20.0)
    took = leading.at / 1000 - since
    assert leading.epoch == 2 and took < within, f"{took:.1f} s"
    assert await second.write("two") == 200
    print(f"\nthe other device leads after {took:.2f} s")
    return took


async def test_one_leads_steps_down_and_the_other_leads_at_once(
    launch_browser: LaunchBrowser, devices: DeviceSite
) -> None:
    first, second = await two(launch_browser, devices)
    assert not await second.is_leading()
    since = time.time()
    await first.stops()
    await follows(second, since, AT_ONCE_S)
    assert await first.late("late") == 409
    effects = devices.effects()
    assert [effect["op_id"] for effect in effects] == ["one", "two"]
    assert [effect["epoch"] for effect in effects] == [1, 2] and len({effect["domain"] for effect in effects}) == 1


async def test_devices_that_ask_at_the_same_moment_lead_one_after_the_other(
    launch_browser: LaunchBrowser, devices: DeviceSite
) -> None:
    both = {name: await device(launch_browser, devices, name) for name in ("first", "second")}
    epochs: list[int] = []
    for turn in range(3):
        await asyncio.gather(*(each.stand() for each in both.values()))
        leading = await leader([each.tab for each in both.values()])
        winner, other = sorted(both.values(), key=lambda each: each.tab is not leading.tab)
        assert await winner.write(f"{turn}-winner") == 200
        await other.waits()
        assert not await other.is_leading()
        await winner.stops()
        following = await other.leads(above=leading.epoch)
        assert await other.write(f"{turn}-other") == 200
        assert await winner.late(f"{turn}-late") == 409
        await other.stops()
        epochs += [leading.epoch, following.epoch]
    assert epochs == sorted(set(epochs)), "each grant has a higher epoch than the one before"
    effects = devices.effects()
    assert [effect["epoch"] for effect in effects] == epochs
    assert [effect["op_id"] for effect in effects] == [
        f"{turn}-{who}" for turn in range(3) for who in ("winner", "other")
    ]


async def test_the_leading_device_is_killed(launch_browser: LaunchBrowser, devices: DeviceSite) -> None:
    first, second = await two(launch_browser, devices)
    kept = await first.tab.evaluate("() => stands.job.runs.at(-1).kept['Fencing-Token']")
    workers = await first.browser.shared_workers()
    since = time.time()
    await first.tab.kill_process()
    for worker in workers:
        if await worker.alive():
            await worker.kill_process()
    await follows(second, since, LEASE_S + SLACK)
    late = """async (token) => (await fetch("/api/operations", { method: "POST", body: '{"operations": []}',
      headers: { "Fencing-Token": token, "Content-Type": "application/json" } })).status"""
    assert await second.tab.evaluate(late, kept) == 409


async def test_the_leading_tab_is_frozen_and_thawed(launch_browser: LaunchBrowser, devices: DeviceSite) -> None:
    first, second = await two(launch_browser, devices)
    since = time.time()
    await first.tab.freeze()
    await follows(second, since, LEASE_S + SLACK)
    await first.tab.thaw()
    assert await first.tab.evaluate(HEADERS) == "LeadershipLost"
    assert await first.late("late") == 409
    assert await first.tab.evaluate("() => stands.job.runs[0].abortedAt !== null")
    await first.waits()
    assert await second.is_leading() and not await first.is_leading()


async def test_the_leading_device_is_cut_off(launch_browser: LaunchBrowser, devices: DeviceSite) -> None:
    first, second = await two(launch_browser, devices)
    since = time.time()
    devices.cut.add("first")
    lost = await first.gives_up()
    assert lost["abortedAt"] / 1000 - since < 10.0 + SLACK
    following = await second.leads(above=1)
    assert following.at >= lost["abortedAt"], "nobody leads before the old one gave up"
    await follows(second, since, LEASE_S + SLACK)
    trouble = await first.tab.evaluate("() => events.filter(({ type }) => type === 'lease-trouble')")
    assert trouble and trouble[-1]["detail"], "it says what is wrong"
    devices.cut.clear()
    assert await first.late("late") == 409
    await until(lambda: _stands_by(first), "the first to ask again", 45)
    assert await second.is_leading() and not await first.is_leading()


async def _stands_by(device: Device) -> bool:
    last = await device.tab.evaluate("() => events.filter(({ type }) => type === 'lease-trouble').at(-1)?.detail")
    return last is None and (await device.status()).get("standby") is True


async def test_the_leading_device_has_no_network(launch_browser: LaunchBrowser, devices: DeviceSite) -> None:
    first, second = await two(launch_browser, devices)
    since = time.time()
    await first.browser.offline(True)
    await first.gives_up()
    await follows(second, since, LEASE_S + SLACK)
    await first.browser.offline(False)
    assert await first.late("late") == 409


async def test_the_tab_that_leads_is_closed_while_another_of_its_device_lives(
    launch_browser: LaunchBrowser, devices: DeviceSite
) -> None:
    first = await device(launch_browser, devices, "first")
    leading = await first.browser.new_tab(f"{devices.url}/blank")
    await join(leading)
    other = Device("first", first.browser, leading, devices)
    await other.stand()
    await other.leads()
    second = await another(launch_browser, devices)
    since = time.time()
    await leading.close()
    await follows(second, since, AT_ONCE_S)


@pytest.mark.parametrize("host", ["shared", "window"])
@pytest.mark.parametrize("how", ["closed", "cached"])
async def test_the_only_tab_of_a_device_goes(
    launch_browser: LaunchBrowser, devices: DeviceSite, host: str, how: str
) -> None:
    """What is given back then is sent by a page or engine that is about to go: best effort, else the lease expires."""
    first, second = await two(launch_browser, devices, writes=False, host=host)
    since = time.time()
    if how == "closed":
        await first.tab.close()
    else:
        await first.tab.navigate(f"{devices.url}/blank2")
    took = await second.leads(above=1, timeout=LEASE_S + 20.0)
    print(f"\n{host}, {how}: the other device leads after {took.at / 1000 - since:.2f} s")
    assert took.at / 1000 - since < LEASE_S + SLACK
    if how == "cached":
        assert await first.tab.back(), await first.tab.not_restored_reasons()
        await first.tab.until("() => typeof stands === 'object' && shown.at(-1) === true", 20, "pageshow")
        await first.waits()
        assert await first.late("late") == 409


async def test_a_frame_that_leads_in_its_own_engine_is_taken_out_of_its_page(
    launch_browser: LaunchBrowser, devices: DeviceSite
) -> None:
    """As an app's framework does it: no task and no microtask of the frame runs any more after ``pagehide``."""
    browser = await launch_browser()
    outer = await browser.new_tab(devices.sign_in("ann", "first"))
    await outer.evaluate(_FRAME)
    frame = Inside(outer.page.frames[1])
    await join(frame, host="window")
    await stand(frame, authorities=["server-lease"], lease=LEASES)
    await until(lambda: frame.evaluate("() => stands.job.election.status.state === 'leading'"), "the frame to lead", 30)
    second = await another(launch_browser, devices)
    since = time.time()
    await outer.evaluate("() => document.querySelector('iframe').remove()")
    took = await second.leads(above=1, timeout=LEASE_S + 20.0)
    assert took.at / 1000 - since < AT_ONCE_S, "it was given back"


async def test_check_is_an_answer_of_the_service(launch_browser: LaunchBrowser, devices: DeviceSite) -> None:
    first = await device(launch_browser, devices, "first")
    await first.stand()
    await first.leads()
    before = devices.requests("first", "POST", LEASES)
    check = "() => stands.job.runs[0].ctx.check().then(() => 'ok', (error) => error.code)"
    assert await first.tab.evaluate(check) == "ok"
    assert devices.requests("first", "POST", LEASES) > before
    devices.cut.add("first")
    said = await first.tab.evaluate(check)
    assert said in ("unreachable", "leadership-lost"), said


# Stands for ``job`` with the page's own bearer token; ``named``: the headers it is to be sent with.
_BEARING = """([policy, named]) => {
  const bearing = async () => { given += 1; return { Authorization: `Bearer ${bearer}` }; };
  window.election = tab.lead("job", (ctx) => new Promise((resolve) => {
    (window.epochs ??= []).push(ctx.epoch);
    ctx.signal.addEventListener("abort", resolve);
  }), { ...policy, ...Object.fromEntries(named.map((name) => [name, bearing])) });
}"""


async def bearing(launch_browser: LaunchBrowser, devices: DeviceSite, *named: str, **options: Any) -> Device:
    """A device of ``ann`` by its bearer token alone, which goes with the requests that ``named`` is about."""
    devices.bearers.update({"t1": "ann", "t2": "ann"})
    first = await device(launch_browser, devices, "first", "nobody-in-particular")
    await first.tab.navigate(devices.sign_out())
    await enter(first.tab, devices, **options)
    await first.tab.evaluate("() => { window.bearer = 't1'; window.given = 0; }")
    policy = {"authorities": ["server-lease"], "lease": LEASES, "fence": RECEIVER}
    await first.tab.evaluate(_BEARING, [policy, named])
    return first


@pytest.mark.parametrize("host", ["shared", "window"])
async def test_the_apps_own_bearer_token_goes_with_each_request(
    launch_browser: LaunchBrowser, devices: DeviceSite, host: str
) -> None:
    first = await bearing(launch_browser, devices, "leaseHeaders", "fenceHeaders", host=host)
    await first.tab.until("() => window.epochs?.length === 1", 20, "it to lead")
    assert devices.requests("first", "POST", RECEIVER) == 1, "the barrier"
    await first.tab.evaluate("() => { bearer = 't2'; }")
    await first.tab.until("() => given >= 4", 20, "it to be renewed")
    assert {user for _, user, _, path in devices.asked if path.startswith((LEASES, RECEIVER))} == {"ann"}
    await first.tab.evaluate("() => { bearer = 'of nobody'; }")
    await first.tab.until("() => election.status.state !== 'leading'", 20, "it to lead no more")
    reason = await first.tab.evaluate("() => events.findLast(({ from }) => from === 'leading').reason")
    assert reason == "lease-renewal-failed"
    detail = await first.tab.evaluate("() => events.find(({ type }) => type === 'lease-trouble').detail")
    assert "HTTP 401" in detail


async def test_a_barrier_that_the_receiver_lets_in_only_with_a_token_is_said_to_be_refused(
    launch_browser: LaunchBrowser, devices: DeviceSite
) -> None:
    first = await bearing(launch_browser, devices, "leaseHeaders")
    status = await first.tab.until(
        "() => election.status.state === 'backing-off' && election.status", 30, "it to back off"
    )
    assert status["reason"] == "unreachable" and "401" in status["detail"], status
    assert await first.tab.evaluate("() => window.epochs ?? []") == [], "nobody leads whose epoch was not shown"


async def test_two_users_have_a_leader_each(launch_browser: LaunchBrowser, devices: DeviceSite) -> None:
    first = await device(launch_browser, devices, "first", "ann")
    second = await device(launch_browser, devices, "second", "bob")
    for each in (first, second):
        await each.stand()
    assert (await first.leads()).epoch == (await second.leads()).epoch == 1
    for each, name in ((first, "anns"), (second, "bobs"), (first, "anns-2")):
        assert await each.write(name) == 200
    effects = devices.effects()
    assert [(effect["subject"], effect["op_id"]) for effect in effects] == [
        ("ann", "anns"),
        ("bob", "bobs"),
        ("ann", "anns-2"),
    ]
    assert len({effect["domain"] for effect in effects}) == 2, "their tokens can never be compared"


async def test_a_policy_that_contradicts_itself_ends_by_name(
    launch_browser: LaunchBrowser, devices: DeviceSite
) -> None:
    first = await device(launch_browser, devices, "first")
    said = await first.tab.evaluate("""async () => {
      const wrong = [{ lease: "/api/leases" }, { authorities: ["server-lease"] }, { lease: 7 },
        { authorities: ["server-lease", "web-locks"], lease: "/api/leases" }];
      const found = [];
      for (const policy of wrong) {
        try { found.push((await tab.lead("job", async () => {}, policy).stopped).error.message); }
        catch (error) { found.push(error.message); }
      }
      return found;
    }""")
    for text, expected in zip(
        said, ("go together", "lease is not given", "policy.lease 7 is not valid", "stands alone"), strict=True
    ):
        assert expected in text
