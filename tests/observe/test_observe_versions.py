"""Old and new tabs side by side: they see each other's version, the old are told, and protocols never meet."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from kit import Member, join, one_leader
from tabhelm.leadership import Leading
from tabhelm.names import channel_name
from tabhelm.observe import UpdateAvailable
from tabhelm.ports import PageState
from tabhelm.presence import Identity
from tabhelm.simulated import World
from tabhelm.tab import Tab, TabFacts


def news(member: Member) -> list[tuple[str, str]]:
    return [(e.tab, e.version) for e in member.services.events.recent if isinstance(e, UpdateAvailable)]


@pytest.mark.parametrize("seed", range(4))
def test_an_old_tab_is_told_once_of_each_newer_version_and_a_new_one_of_none(seed: int) -> None:
    with World(seed) as world:

        async def main() -> None:
            old = join(world, "old", version="104.2")
            same = join(world, "same", version="104.2")
            await world.sleep(2.0)
            assert news(old) == news(same) == []
            newer = join(world, "newer", version="104.10")
            await world.sleep(1.0)
            again = join(world, "again", version="104.10")
            older = join(world, "older", version="9.99.99")
            await world.sleep(60.0)
            assert news(old) == [("t-old", "104.10")] and news(same) == [("t-same", "104.10")]
            assert news(older) == [("t-older", "104.10")], "one that joins with an old version is told, too"
            assert news(newer) == news(again) == []
            newest = join(world, "newest", version="105")
            await world.sleep(60.0)
            assert news(old) == [("t-old", "104.10"), ("t-old", "105")]
            assert news(newer) == [("t-newer", "105")]
            assert news(newest) == []

        world.run(main())


def test_a_page_that_leaves_right_after_a_newer_one_joined_looks_no_more() -> None:
    with World(1) as world:

        async def main() -> None:
            old = join(world, "old", version="1.0", in_page=True)
            await world.sleep(1.0)
            join(world, "newer", version="2.0")
            roster = old.services.roster
            await world.until(lambda: len(roster.versions()) > 1)

            def leave() -> None:
                old.tab.vanish("pagehide")
                old.services.suspend()

            old.call(leave)
            await world.sleep(60.0)  # a timer that raises ends the world
            assert news(old) == []

        world.run(main())


def test_nobody_left_at_all_has_no_newest_version() -> None:
    with World(1) as world:

        async def main() -> None:
            old = join(world, "old", version="1.0")
            newer = join(world, "newer", version="2.0")
            roster = old.services.roster
            await world.until(lambda: len(roster.versions()) > 1)
            newer.agent.process.crash()

            def alone() -> None:
                old.tab.vanish("over")
                roster.forget_others()

            old.call(alone)
            assert not roster.versions()
            await world.sleep(5.0)
            assert news(old) == []

        world.run(main())


def test_a_closed_watch_starts_nothing() -> None:
    with World(1) as world:

        async def main() -> None:
            old = join(world, "old", version="1.0")
            await world.sleep(1.0)
            old.call(old.services.observing.updates.close)
            join(world, "newer", version="2.0")
            await world.sleep(60.0)
            assert len(old.services.roster.versions()) == 2 and news(old) == []

        world.run(main())


def test_versions_that_are_no_numbers_are_not_compared() -> None:
    with World(1) as world:

        async def main() -> None:
            members = [join(world, f"m{n}", version=version) for n, version in enumerate(["", "dev", "1.0", "1"])]
            await world.sleep(10.0)
            assert [news(member) for member in members] == [[], [], [], []]

        world.run(main())


def test_two_tabs_of_one_engine_are_told_apart() -> None:
    with World(1) as world:

        async def main() -> None:
            first = join(world, "a", version="1.0")

            def second() -> Tab:
                return Tab(first.services, Identity("t-b", "c-b", 1), TabFacts("2.0"), PageState("active"))

            first.call(second)
            await world.sleep(1.0)
            assert news(first) == [("t-a", "2.0")]

        world.run(main())


@pytest.mark.parametrize("seed", range(3))
def test_versions_of_one_protocol_share_one_leader_and_see_whose_version_leads(seed: int) -> None:
    with World(seed) as world:

        async def main() -> None:
            members = [join(world, f"m{n}", version=f"{n}.0") for n in range(3)]
            elections = [member.lead() for member in members]
            leader = await one_leader(world, members)
            await world.sleep(6.0)
            version = leader.tab.facts.version
            for member, election in zip(members, elections, strict=True):
                seen = member.call(election.leader)
                assert (seen.version, seen.authority, seen.liveness) == (version, "web-locks", "alive")
                tabs = member.services.roster.tabs(member.ports.clock.monotonic())
                assert {tab.version for tab in tabs} == {"0.0", "1.0", "2.0"}

        world.run(main())


@pytest.mark.parametrize("seed", range(3))
def test_two_protocols_never_coordinate(seed: int) -> None:
    with World(seed) as world:

        async def main() -> None:
            old = [join(world, f"o{n}", protocol=1, version="1.0") for n in range(2)]
            new = [join(world, f"n{n}", protocol=2, version="2.0") for n in range(2)]
            for member in (*old, *new):
                member.lead()
            first, second = await one_leader(world, old), await one_leader(world, new)
            await world.sleep(60.0)
            assert first.leading and second.leading, "each has its own"
            for member in (*old, *new):
                roster = member.services.roster
                now = member.ports.clock.monotonic()
                assert len(roster.tabs(now)) == 2 and len(roster.leaders(now)) == 1
                assert news(member) == []
                assert member.services.events.ignored_counts == {}
            second.agent.process.crash()
            await one_leader(world, [member for member in new if member is not second])
            assert first.leading and isinstance(next(iter(first.tab.elections.values())).status, Leading)

        world.run(main())


def test_messages_of_an_unknown_newer_wire_version_are_counted_and_ignored() -> None:
    with World(1) as world:

        async def main() -> None:
            member = join(world, "a")
            member.lead()
            await one_leader(world, [member])
            stranger = world.agent("stranger")
            ports = world.ports(stranger)
            channel = stranger.call(lambda: ports.channels.open(channel_name("app", 1)))
            beacon = {"tabhelm": 2, "kind": "beacon", "sender": "e-9", "number": 1, "next": 5.0, "tabs": [], "more": {}}
            for _ in range(12):
                stranger.call(lambda: channel.post(json.dumps(beacon)))
            await world.sleep(1.0)
            metrics = member.call(member.tab.metrics)
            assert metrics.ignored == {"version": 12}
            assert 'tabhelm_messages_ignored_total{cause="version"} 12' in metrics.text()
            assert Counter(type(e).__name__ for e in member.services.events.recent)["MessageIgnored"] == 2
            assert member.leading

        world.run(main())
