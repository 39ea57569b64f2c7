"""A lease service beside the other authorities of a browser; what a policy may say; queues."""

from __future__ import annotations

from typing import Any

import pytest
from device_kit import SERVER, Devices
from lease_kit import LEASE, reasons

from tabhelm.election import LeadershipPolicy
from tabhelm.errors import InvalidPolicy
from tabhelm.leadership import BackingOff, LeaderContext
from tabhelm.queue import Queue
from tabhelm.simulated import World

WEB_LOCKS = ("web-locks",)


# -- two authorities in one browser -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("local", [WEB_LOCKS, LEASE])
@pytest.mark.parametrize("first", ["server", "local"])
@pytest.mark.parametrize("end", ["step-down", "die"])
def test_a_second_live_authority_of_one_browser_is_refused(
    seed: int, local: tuple[str, ...], first: str, end: str
) -> None:
    with World(seed) as world:
        devices = Devices(world)

        async def main() -> None:
            world.faults.channel_loss = 1.0  # presence would only make the other one watch
            old, other = devices.one.join("a"), devices.one.join("b")
            policies: list[dict[str, Any]] = [{}, {"authorities": local, "lease": None}]
            if first == "local":
                policies.reverse()
            election = devices.one.lead(old, **policies[0])
            await devices.crew.led(old)
            refused = devices.one.lead(other, **policies[1])
            seen: set[str] = set()
            refused.subscribe(lambda state: seen.add(getattr(state, "reason", "")))
            await world.sleep(90.0)
            assert "split-authority" in seen, seen
            assert other.led == [] and old.leading and len(old.led) == 1
            if end == "die":
                old.agent.die()
            else:
                old.call(lambda: election.stop("enough"))
            await devices.crew.led(other, within=90.0)

        world.run(main())
        assert devices.crew.both == []


@pytest.mark.parametrize("seed", range(6))
def test_both_begin_at_the_same_time_and_one_is_refused(seed: int) -> None:
    with World(seed) as world:
        devices = Devices(world)

        async def main() -> None:
            world.faults.channel_loss = 1.0
            members = [devices.one.join(f"m{n}") for n in range(4)]
            devices.one.lead(devices.one.join("z"), authorities=WEB_LOCKS, lease=None)  # the store is not empty then
            await world.sleep(2.0)
            devices.crew.contexts.clear()
            policies: list[dict[str, Any]] = [{}, {"authorities": LEASE, "lease": None}]
            for n, member in enumerate(members):
                election = devices.crew.lead(
                    member, "other", **{"authorities": SERVER, "lease": devices.one.url, **policies[n % 2]}
                )
                assert election is not None
            await world.until(lambda: any(member.leading for member in members))
            for _ in range(200):
                await world.sleep(0.25)
                assert sum(member.leading for member in members) == 1

        world.run(main())


def test_a_browser_whose_storage_was_wiped_goes_on() -> None:
    with World(1) as world:
        devices = Devices(world)

        async def main() -> None:
            first = await devices.one.leading()
            devices.one.storage.wipe()
            await world.sleep(30.0)
            assert first.leading and first.led == [1]
            assert {"lease:app:v1:leader:r", "epoch:app:r", "domain"} <= set(devices.one.fencing())

        world.run(main())


def test_the_services_domain_never_becomes_the_browsers() -> None:
    """An engine that hears of a leader before it has a domain of its own must not take the service's for it."""
    with World(1) as world:
        devices = Devices(world)

        async def main() -> None:
            first = await devices.one.leading()
            domain = first.grants[0].domain
            other = devices.one.join("other")
            await world.sleep(20.0)
            assert other.services.memory.domain != domain
            devices.one.storage.wipe()
            other.lead("local")
            await world.sleep(20.0)
            assert devices.one.fencing()["domain"]["domain"] != domain
            assert [grant.domain == domain for grant in other.grants] == [False]

        world.run(main())


def test_without_storage_nothing_decides() -> None:
    with World(1) as world:
        devices = Devices(world)

        async def main() -> None:
            world.faults.storage_denied = True
            first = devices.one.standing()
            await world.sleep(10.0)
            status = first.tab.elections["app:r"].status
            assert isinstance(status, BackingOff) and status.reason == "no-authority" and first.led == []

        world.run(main())


def test_a_store_that_hangs_ends_it_as_a_service_that_does() -> None:
    with World(1) as world:
        devices = Devices(world)

        async def main() -> None:
            first = await devices.one.leading()
            world.faults.commit_delay = (1e6, 1e6)
            await world.until(lambda: not first.leading, within=16.0)
            assert reasons(first) == ["lease-renewal-failed"]

        world.run(main())


# -- policies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ({"lease": "/leases"}, "'server-lease' go together"),
        ({"authorities": ["server-lease"]}, "lease is not given"),
        ({"authorities": ["server-lease", "web-locks"], "lease": "/leases"}, "stands alone"),
        ({"authorities": ["web-locks"], "lease": "/leases"}, "go together"),
        ({"authorities": ["server-lease"], "lease": "leases"}, "lease 'leases' is not valid"),
        ({"authorities": ["server-lease"], "lease": "//other.example/leases"}, "lease '//other"),
        ({"authorities": ["server-lease"], "lease": "javascript:alert(1)"}, "lease 'javascript"),
        ({"authorities": ["server-lease"], "lease": "/leases?x=1"}, "lease '/leases\\?x=1'"),
        ({"authorities": ["server-lease"], "lease": "https://x.example/a b"}, "lease 'https://x.example/a b'"),
        ({"authorities": ["server-lease"], "lease": 7}, "lease 7 is not valid"),
        ({"leaseHeaders": {"a": "b"}}, "without lease"),
        ({"authorities": ["server-lease"], "lease": "/l", "leaseHeaders": ["a"]}, "leaseHeaders of type list"),
        ({"authorities": ["server-lease"], "lease": "/l", "leaseHeaders": {"a": 1}}, "leaseHeaders: 'a' is not valid"),
        (
            {"authorities": ["server-lease"], "lease": "/l", "leaseHeaders": {"Content-Type": "x"}},
            "leaseHeaders: 'Content-Type' is tabhelm's own",
        ),
    ],
)
def test_what_a_policy_may_not_say_is_named_in_python_and_on_the_wire(policy: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidPolicy, match=says):
        LeadershipPolicy.from_wire(policy)
    names = {"leaseHeaders": "lease_headers"}
    with pytest.raises(InvalidPolicy, match=says.replace("leaseHeaders", "lease_headers")):
        LeadershipPolicy(**{names.get(key, key): value for key, value in policy.items()})


@pytest.mark.parametrize("url", ["/leases", "/", "https://x.example/leases/", "http://127.0.0.1:8000/a/b"])
def test_what_it_may_say(url: str) -> None:
    given = {"authorities": ["server-lease"], "lease": url, "leaseHeaders": {"X-Mine": "1"}}
    policy = LeadershipPolicy.from_wire(given)
    assert (policy.authorities, policy.lease, policy.lease_headers) == (SERVER, url, {"X-Mine": "1"})


def test_a_queue_is_not_flushed_by_lease_of_a_service() -> None:
    with World(1) as world:
        devices = Devices(world)

        async def loop(context: LeaderContext, queue: Queue) -> None: ...

        async def main() -> None:
            first = devices.one.join()
            policy = LeadershipPolicy(authorities=SERVER, lease=devices.one.url)
            with pytest.raises(InvalidPolicy, match="queue 'mutations': authorities .* each device empties its own"):
                first.call(lambda: first.tab.queue("mutations", loop=loop, policy=policy))

        world.run(main())
