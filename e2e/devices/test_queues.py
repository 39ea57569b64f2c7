"""Queues of several devices and several users at one receiver, which knows who is signed in.

Devices: each empties its own queue, and their fencing domains never meet. Users of one device: nobody's work travels
with somebody else's cookies, and it goes on when its owner is back.
"""

from __future__ import annotations

import asyncio
from typing import Any

from e2e.devices.kit import Device, device, enter
from e2e.devices.site import RECEIVER, DeviceSite
from e2e.kit import until
from e2e.offline_queue.lane import drained, enqueue, open_queue, operations, stats

from tabhelm.testing import ChaosTab
from tabhelm.testing.pytest_plugin import LaunchBrowser

BARRED = """async () => Object.values((await tab.diagnose()).engine.elections)
  .some(({ state, reason }) => state === "idle" && reason === "session-mismatch")"""


def names(effects: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Who the server took the sender for, and whose work it was."""
    return [(effect["subject"], effect["payload"]["from"]) for effect in effects]


async def change_users(tab: ChaosTab, site: DeviceSite, user: str) -> None:
    """Sign whoever it is out, and another one in, as pages do: by navigating."""
    await tab.navigate(site.sign_out())
    await tab.navigate(site.sign_in(user, "phone"))
    await enter(tab, site, session=f"user:{user}")
    await open_queue(tab, scope=f"user:{user}")


async def test_two_devices_of_one_user_send_through_their_own_queues(
    launch_browser: LaunchBrowser, devices: DeviceSite
) -> None:
    both: list[Device] = []
    for name in ("phone", "laptop"):
        both.append(await device(launch_browser, devices, name, session="user:ann"))
        await open_queue(both[-1].tab, scope="user:ann")
    for n in range(3):
        await asyncio.gather(*(enqueue(each.tab, operations(f"{each.name}-{n}", 20, partitions=3)) for each in both))
    for each in both:
        await drained(each.tab, done=60)
    effects = devices.effects()
    assert len(effects) == 120 and {effect["subject"] for effect in effects} == {"ann"}
    domains: dict[str, set[str]] = {}
    for effect in effects:
        domains.setdefault(effect["payload"]["from"].partition("-")[0], set()).add(effect["domain"])
    assert all(len(found) == 1 for found in domains.values()), "a device has one domain"
    assert domains["phone"] != domains["laptop"]
    assert {effect["epoch"] for effect in effects} == {1}, "both lead their own queue, each in its first epoch"
    assert devices.refused() == 0, "so the same epoch of two devices is no conflict"


async def test_a_device_that_comes_late_with_a_low_epoch_is_not_stale(
    launch_browser: LaunchBrowser, devices: DeviceSite
) -> None:
    """The laptop's queue has changed hands often when the phone, whose epochs are low, comes online."""
    phone = await device(launch_browser, devices, "phone", session="user:ann")
    devices.cut.add("phone")
    await open_queue(phone.tab, scope="user:ann")
    await enqueue(phone.tab, operations("phone", 5))
    laptop = await device(launch_browser, devices, "laptop", session="user:ann")
    for n in range(4):
        await open_queue(laptop.tab, scope="user:ann")
        await enqueue(laptop.tab, operations(f"laptop-{n}", 5))
        await drained(laptop.tab, done=5 * (n + 1))
        await laptop.tab.reload()
        await enter(laptop.tab, devices, session="user:ann")
    assert max(effect["epoch"] for effect in devices.effects()) == 4
    devices.cut.clear()
    await drained(phone.tab, done=5, timeout=90.0)
    sent = [effect for effect in devices.effects() if effect["payload"]["from"] == "phone"]
    assert len(sent) == 5 and max(effect["epoch"] for effect in sent) < 4
    assert devices.refused() == 0


async def test_one_users_work_waits_while_another_is_signed_in_and_goes_on_when_its_owner_is_back(
    launch_browser: LaunchBrowser, devices: DeviceSite
) -> None:
    phone = await device(launch_browser, devices, "phone", "ann", session="user:ann")
    await open_queue(phone.tab, scope="user:ann")
    devices.cut.add("phone")
    await enqueue(phone.tab, operations("ann", 5))
    assert (await stats(phone.tab))["done"] == 0

    await change_users(phone.tab, devices, "bob")
    devices.cut.clear()
    await enqueue(phone.tab, operations("bob", 5))
    await drained(phone.tab, done=5, timeout=90.0)
    assert names(devices.effects()) == [("bob", "bob")] * 5

    # Even where somebody opens it by its name: it is not bob's to send.
    await open_queue(phone.tab, scope="user:ann")
    await phone.tab.until(BARRED, what="the first user's flusher to be barred")
    assert (await stats(phone.tab))["queued"] == 5
    assert names(devices.effects()) == [("bob", "bob")] * 5

    await change_users(phone.tab, devices, "ann")
    await drained(phone.tab, done=5)
    assert names(devices.effects()) == [("bob", "bob")] * 5 + [("ann", "ann")] * 5


async def test_a_user_who_signs_out_stops_at_once_and_a_late_answer_is_no_loss(
    launch_browser: LaunchBrowser, devices: DeviceSite
) -> None:
    """Signed out in the app while a batch is on its way: it is applied, and nobody hears of it. Then signed in again in
    the same page."""
    phone = await device(launch_browser, devices, "phone", "ann", session="user:ann")
    await open_queue(phone.tab, scope="user:ann")
    await enqueue(phone.tab, operations("ann", 1))
    await drained(phone.tab, done=1)  # so that it leads, and the next request is the batch
    devices.kept_waiting.add("phone")
    await enqueue(phone.tab, operations("ann", 5))
    await until(lambda: _are_of_ann(devices, 6), "the batch to be applied", 30)

    await phone.tab.evaluate("() => tab.update({ session: null })")
    await phone.tab.until(BARRED, what="the flusher to be barred")
    posts = devices.requests("phone", "POST", RECEIVER)
    await enqueue(phone.tab, operations("ann", 5))
    devices.kept_waiting.clear()
    other = await phone.browser.new_tab(devices.sign_out())  # the cookie is the whole browser's
    await phone.tab.show()
    at = await stats(phone.tab)
    assert at["queued"] + at["inFlight"] == 10, "what was on its way is still to be sent"
    await other.navigate(devices.sign_in("ann", "phone"))
    assert devices.requests("phone", "POST", RECEIVER) == posts, "nothing left while nobody was signed in"
    assert devices.totals()["duplicate"] == 0

    await phone.tab.show()
    await phone.tab.evaluate("() => tab.update({ session: 'user:ann' })")
    await drained(phone.tab, done=11)
    assert devices.totals()["duplicate"] == 5
    assert await _are_of_ann(devices, 11)
    assert len({effect["op_id"] for effect in devices.effects()}) == 11


async def test_nobodys_work_goes_out_as_who_signed_in_in_another_tab(
    launch_browser: LaunchBrowser, devices: DeviceSite
) -> None:
    """Tabs share their cookies: the first one, which takes itself for ann's, now sends as bob. Scope and cookie do not
    agree, which only the receiver can see."""
    phone = await device(launch_browser, devices, "phone", "ann", session="user:ann")
    await open_queue(phone.tab, scope="user:ann")
    await enqueue(phone.tab, operations("ann", 1))
    await drained(phone.tab, done=1)
    other = await phone.browser.new_tab(devices.sign_in("bob", "phone"))
    await enqueue(phone.tab, operations("ann", 5))
    paused = await phone.tab.until(
        "() => events.find(({ type }) => type === 'queue-paused')", what="ann's queue to pause"
    )
    assert "403" in paused["reason"], paused
    assert ("phone", "bob", "POST", RECEIVER) in devices.asked, "it was sent with his cookie"
    assert await _are_of_ann(devices, 1)

    await enter(other, devices, session="user:bob")
    await open_queue(other, scope="user:bob")
    await enqueue(other, operations("bob", 3))
    await drained(other, done=3)
    assert names(devices.effects()) == [("ann", "ann"), *[("bob", "bob")] * 3]
    at = await stats(phone.tab)
    assert at["paused"] and at["queued"] + at["inFlight"] == 5 and at["dead"] == 0  # one may be on trial

    await other.navigate(devices.sign_in("ann", "phone"))
    await drained(phone.tab, done=6, timeout=90.0)  # by itself: it asks again every half minute
    effects = devices.effects()
    assert names(effects) == [("ann", "ann"), *[("bob", "bob")] * 3, *[("ann", "ann")] * 5]
    assert len({effect["op_id"] for effect in effects}) == 9
    assert devices.totals()["duplicate"] == 0


async def test_a_session_that_the_server_ended_pauses_the_queue_until_its_owner_signs_in(
    launch_browser: LaunchBrowser, devices: DeviceSite
) -> None:
    phone = await device(launch_browser, devices, "phone", "ann", session="user:ann")
    other = await phone.browser.new_tab(devices.sign_out())  # the cookie is the whole browser's
    await phone.tab.show()
    await open_queue(phone.tab, scope="user:ann")
    await enqueue(phone.tab, operations("ann", 5))
    await phone.tab.until("() => events.some(({ type }) => type === 'queue-paused')", what="the queue to pause")
    assert devices.effects() == [] and (await stats(phone.tab))["dead"] == 0

    await other.navigate(devices.sign_in("ann", "phone"))
    await phone.tab.evaluate("() => q.resume()")
    await drained(phone.tab, done=5)
    await until(lambda: _are_of_ann(devices, 5), "five effects")


async def _are_of_ann(devices: DeviceSite, count: int) -> bool:
    return names(devices.effects()) == [("ann", "ann")] * count
