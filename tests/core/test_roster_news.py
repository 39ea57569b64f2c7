"""Who is told of what: a change is news for the resources that it concerns, and for no others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tabhelm.messages import Beacon, LeaderNote, LeaderSigns, TabNote
from tabhelm.presence import Roster
from tabhelm.presence.signs import TICK

AB = TabNote("t-1", "c-1", 1, "active", True, True, "1.0", (), ("a", "b"), 2.0)
C = TabNote("t-2", "c-2", 1, "active", True, True, "1.0", (), ("c",), 2.0)


def leads(resource: str, epoch: int = 1, note: TabNote = AB, **said: Any) -> LeaderNote:
    return LeaderNote(resource, note.tab, note.connection, "d", epoch, 0.0, **said)


class Lab:
    def __init__(self) -> None:
        self.roster = Roster("me")
        self.told: list[str] = []
        for name in "abcd":
            self.roster.follow(name, lambda name=name: self.told.append(name))  # type: ignore[misc]
        self.number = 0

    def heard(self, tabs: tuple[TabNote, ...], leaders: tuple[LeaderNote, ...] = (), now: float = 1.0) -> None:
        self.number += 1
        self.roster.heard(Beacon("other", self.number, 15.0, tabs, leaders), now)

    def news(self) -> str:
        told, self.told = "".join(sorted(self.told)), []
        return told


OF_A_TAB: dict[str, tuple[TabNote, str]] = {
    "nothing": (AB, ""),
    "its age": (replace(AB, age=99.0), ""),
    "it stands for more": (replace(AB, stands=("a", "b", "d")), "d"),
    "it stands for less": (replace(AB, stands=("a",)), "b"),
    "a score": (replace(AB, scores=(("b", 2.0),)), "b"),
    "a turn": (replace(AB, turns=(("a", 7),)), "a"),
    "it is hidden": (replace(AB, visible=False), "ab"),
    "it froze": (replace(AB, lifecycle="frozen"), "ab"),
    "a capability": (replace(AB, capabilities=("x",)), "ab"),
    "its version": (replace(AB, version="2.0"), "ab"),
    "it froze, and stands for something else": (replace(AB, lifecycle="frozen", stands=("a", "d")), "abd"),
}


@pytest.mark.parametrize("where", ["ours", "theirs"])
@pytest.mark.parametrize("what", OF_A_TAB)
def test_what_changes_of_a_tab_concerns_what_it_stands_for(what: str, where: str) -> None:
    lab = Lab()
    after, concerned = OF_A_TAB[what]
    say: Callable[[TabNote], None] = (
        (lambda note: lab.roster.put_own(note, 1.0)) if where == "ours" else (lambda note: lab.heard((note, C)))
    )
    say(AB)
    assert lab.news() == ("ab" if where == "ours" else "abc")
    say(after)
    assert lab.news() == concerned


def test_who_leads_concerns_that_resource_alone() -> None:
    lab = Lab()
    lab.roster.put_own(AB, 1.0)
    lab.roster.put_own(C, 1.0)
    lab.news()
    lab.roster.set_leading(leads("a"), 1.0)
    assert lab.news() == "a"
    assert lab.roster.leader("a", 1.0) is not None and lab.roster.leader("b", 1.0) is None
    lab.roster.clear_leading("a", "c-1", 2.0)
    assert lab.news() == "a" and lab.roster.leader("a", 2.0) is None
    lab.roster.remove_own("c-2")
    assert lab.news() == "c"


def test_leaders_of_another_engine_concern_what_they_lead() -> None:
    lab = Lab()
    lab.heard((AB, C))
    lab.news()
    lab.heard((AB, C), (leads("a"),))
    assert lab.news() == "a"
    lab.heard((AB, C), (leads("a", progress=5.0),))
    assert lab.news() == "", "how far it is changes nobody's mind"
    lab.heard((AB, C), (leads("a", 2), leads("c", note=C)))
    assert lab.news() == "ac"
    lab.heard((AB,), (leads("a", 2),))
    assert lab.news() == "c"
    lab.heard(())
    assert lab.news() == "ab"


@pytest.mark.parametrize("end", ["dies", "all are forgotten", "falls silent"])
def test_an_engine_that_is_no_more_concerns_what_its_tabs_stood_for(end: str) -> None:
    lab = Lab()
    lab.heard((AB, C), (leads("a"),))
    lab.roster.tick(1.0)
    lab.news()
    match end:
        case "dies":
            lab.roster.forget("other", 2.0)
        case "all are forgotten":
            lab.roster.forget_others()
        case _:
            now = 1.0
            while not lab.told:
                now += TICK
                lab.roster.tick(now)
            assert now == pytest.approx(1.0 + 2 * 15.0, abs=2 * TICK)
    assert lab.news() == "abc"


def test_who_looked_before_our_own_sleep_was_found_out_is_told() -> None:
    """After a thaw some other timer may fire first: everybody seems to be dead until the roster looks at the clock."""
    lab = Lab()
    lab.heard((AB, C), (leads("a"),))
    lab.roster.tick(1.0)
    lab.news()
    assert lab.roster.leader("a", 600.0) is None
    lab.roster.tick(600.0)
    assert lab.roster.leader("a", 600.0) is not None
    assert lab.news() == "abc"
    lab.roster.tick(600.0 + TICK)
    assert lab.news() == ""


def test_our_own_sleep_is_no_silence_of_another_protocols_leader() -> None:
    """It shares our queues, but its beacons do not reach us: its signs do."""
    lab = Lab()
    lab.roster.heard_signs(LeaderSigns("old", 1, 5.0, (leads("d"),)), 1.0)
    lab.roster.tick(1.0)
    lab.news()
    assert lab.roster.count_acting("d", 600.0) == 0
    lab.roster.tick(600.0)
    assert lab.roster.count_acting("d", 600.0) == 1 and lab.roster.acting(600.0)["d"] == 1
    assert lab.news() == "d", "whoever looked before this found out that we slept is told"
    now = 600.0
    while not lab.told:
        now += TICK
        lab.roster.tick(now)
    assert now == pytest.approx(600.0 + 4 * 5.0, abs=2 * TICK), "its silence in our waking time counts"
    assert lab.roster.count_acting("d", now) == 0


def test_an_engine_of_another_protocol_that_falls_silent_is_told_once() -> None:
    lab = Lab()
    assert lab.roster.heard_signs(LeaderSigns("old", 1, 5.0, (leads("d"),)), 1.0) == {"d"}
    assert lab.roster.count_acting("d", 2.0) == 1
    now = 1.0
    while not lab.told:
        now += TICK
        lab.roster.tick(now)
    assert lab.roster.count_acting("d", now) == 0
    lab.roster.tick(now + TICK)
    assert lab.news() == "d"


def test_who_follows_no_more_is_told_nothing() -> None:
    roster = Roster("me")
    told: list[int] = []
    stops = [roster.follow("a", lambda each=each: told.append(each)) for each in (1, 2)]  # type: ignore[misc]
    stops[0]()
    stops[0]()
    roster.put_own(AB, 1.0)
    assert told == [2]
    stops[1]()
    roster.remove_own("c-1")
    assert told == [2]
    roster.follow("a", lambda: told.append(3))
    roster.put_own(AB, 1.0)
    assert told == [2, 3]


def test_one_count_and_all_counts_of_leaders_agree() -> None:
    lab = Lab()
    lab.roster.set_leading(leads("a"), 1.0)
    lab.heard((AB, C), (leads("a", 2), leads("c", note=C)))
    lab.roster.heard_signs(LeaderSigns("old", 1, 5.0, (leads("c"), leads("d"))), 1.0)
    for now in (2.0, 30.0, 70.0):
        counts = lab.roster.acting(now)
        assert {name: lab.roster.count_acting(name, now) for name in "abcd"} == {name: counts[name] for name in "abcd"}
