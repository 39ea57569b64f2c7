"""What is counted, and how Prometheus reads it."""

from __future__ import annotations

import re

import pytest

from kit import join, one_leader
from tabhelm.errors import LockTimeout
from tabhelm.host.diagnosis import diagnosis
from tabhelm.host.views import metrics_view
from tabhelm.leadership import LeaderContext
from tabhelm.observe import Events, LeadershipChanged, LoopOverran, MetricsRecorder, WriteRefused
from tabhelm.observe.durations import BOUNDS, DurationCounter
from tabhelm.observe.metrics import MOST_REASONS, MOST_RESOURCES, OTHER
from tabhelm.simulated import World

SAMPLE = re.compile(r'[a-z_]+(\{[a-z]+="([^"\\\n]|\\.)*"(,[a-z]+="([^"\\\n]|\\.)*")*\})? [0-9.e+-]+\Z')


class Lab:
    """Steps of an election as events, under a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.events = Events()
        self.recorder = MetricsRecorder(self.events, lambda: self.now)
        self.state: dict[str, str] = {}

    def step(
        self, after: str, reason: str = "x", *, wait: float = 0.0, tab: str = "t", resource: str = "app:r"
    ) -> None:
        self.now += wait
        before = self.state.get(tab, "idle")
        self.state[tab] = after
        self.events.emit(LeadershipChanged(resource, tab, before, after, reason, 1, "active", True))

    def lead(self, *, wait: float = 0.0, hold: float = 0.0, tab: str = "t", reason: str = "step-down") -> None:
        self.step("waiting", tab=tab)
        self.step("leading", wait=wait, tab=tab)
        self.step("stepping-down", reason, wait=hold, tab=tab)
        self.step("backing-off", reason, tab=tab)


def test_waiting_and_holding_are_timed_from_first_asking_to_the_release() -> None:
    lab = Lab()
    lab.step("waiting")
    lab.step("waiting", wait=1.0)  # another place in the line is the same wait
    lab.step("backing-off", "database-closed", wait=1.0)
    lab.step("waiting", wait=1.0)  # …and so is a failure
    lab.step("leading", wait=1.0)
    lab.step("stepping-down", "frozen", wait=10.0)
    lab.step("idle", "frozen", wait=0.5)
    lab.step("waiting", wait=100.0)
    lab.step("leading", wait=2.0)
    found = lab.recorder.snapshot({"app:r": 1}, 3).resources["app:r"]
    assert (found.wait.count, found.wait.sum, found.wait.longest) == (2, 6.0, 4.0)
    assert (found.hold.count, found.hold.sum) == (1, 10.5)
    assert found.acquisitions == 2
    assert found.failures == {"database-closed": 1}
    assert found.step_downs == {"frozen": 1}
    assert found.leaders_acting == 1


def test_two_tabs_of_one_engine_are_timed_apart() -> None:
    lab = Lab()
    lab.step("waiting", tab="a")
    lab.step("waiting", tab="b", wait=5.0)
    lab.step("leading", tab="a", wait=1.0)
    lab.step("leading", tab="b", wait=1.0)
    found = lab.recorder.snapshot({}, 0).resources["app:r"]
    assert found.wait.sum == 6.0 + 2.0


def test_a_duration_falls_into_one_class() -> None:
    counter = DurationCounter()
    for seconds in (0.0, 0.005, 0.006, 3600.0, 3600.1):
        counter.add(seconds)
    classes = counter.snapshot().classes
    assert sum(classes) == 5 and len(classes) == len(BOUNDS) + 1
    assert (classes[0], classes[1], classes[-2], classes[-1]) == (2, 1, 1, 1)


def test_words_of_the_app_cannot_grow_without_end() -> None:
    lab = Lab()
    for number in range(3 * MOST_REASONS):
        lab.lead(reason=f"reason-{number}")
    for number in range(2 * MOST_RESOURCES):
        lab.step("idle", resource=f"app:r{number}")
    metrics = lab.recorder.snapshot({}, 0)
    assert len(metrics.resources) == MOST_RESOURCES + 1 and OTHER in metrics.resources
    reasons = metrics.resources["app:r"].step_downs
    assert len(reasons) == MOST_REASONS + 1
    assert reasons[OTHER] == 2 * MOST_REASONS


def test_the_text_is_what_prometheus_reads() -> None:
    lab = Lab()
    lab.lead(wait=0.02, hold=70.0, reason='a "quoted"\nback\\slash')
    lab.lead(wait=2.0, hold=1.0)
    lab.events.emit(LoopOverran("app:r", 5.0))
    lab.events.emit(WriteRefused("app:r", 1, "stale"))
    lab.events.ignored("version")
    text = lab.recorder.snapshot({"app:r": 2}, 7).text()
    lines = text.splitlines()
    assert text.endswith("\n") and len(lines) == len(set(lines)), "no series twice"
    for line in lines:
        assert line.startswith("# ") or SAMPLE.match(line), line
    for expected in (
        'tabhelm_leaders_acting{resource="app:r"} 2',
        'tabhelm_acquisitions_total{resource="app:r"} 2',
        'tabhelm_step_downs_total{resource="app:r",reason="a \\"quoted\\"\\nback\\\\slash"} 1',
        'tabhelm_loop_overruns_total{resource="app:r"} 1',
        'tabhelm_writes_refused_total{resource="app:r",verdict="stale"} 1',
        'tabhelm_messages_ignored_total{cause="version"} 1',
        'tabhelm_wait_seconds_bucket{resource="app:r",le="0.025"} 1',
        'tabhelm_wait_seconds_bucket{resource="app:r",le="5"} 2',
        'tabhelm_wait_seconds_bucket{resource="app:r",le="+Inf"} 2',
        'tabhelm_hold_seconds_sum{resource="app:r"} 71.000000',
        'tabhelm_hold_seconds_count{resource="app:r"} 2',
        "tabhelm_tabs 7",
    ):
        assert expected in lines, expected


@pytest.mark.parametrize("seed", range(4))
def test_a_real_election_is_counted_in_the_engine_of_each_tab(seed: int) -> None:
    with World(seed) as world:

        async def main() -> None:
            members = [join(world, f"m{n}") for n in range(3)]
            elections = [member.lead() for member in members]
            first = await one_leader(world, members)
            await world.sleep(20.0)
            old = elections[members.index(first)]
            first.call(lambda: old.step_down("enough"))
            await world.until(lambda: sum(m.leading for m in members) == 1 and not first.leading)
            second = next(member for member in members if member.leading)
            await world.sleep(10.0)
            of_first = first.call(first.tab.metrics).resources["app:r"]
            of_second = second.call(second.tab.metrics).resources["app:r"]
            assert of_first.step_downs == {"enough": 1}
            assert of_first.acquisitions == of_second.acquisitions == 1
            assert of_first.hold.count == 1 and 19.0 < of_first.hold.sum < 22.0
            assert of_second.wait.count == 1 and of_second.wait.sum > 19.0
            assert {m.call(m.tab.metrics).resources["app:r"].leaders_acting for m in members} == {1}

        world.run(main())


def test_scopes_do_not_leave_the_browser_in_the_text() -> None:
    with World(1) as world:

        async def main() -> None:
            member = join(world, "a")

            async def work(context: LeaderContext) -> None:
                await context.sleep(1000.0)

            member.call(lambda: member.tab.lead("sync", work, scope="user:123"))
            await world.until(lambda: member.leading)
            metrics = member.call(member.tab.metrics)
            assert "app:sync:user:123" in metrics.resources
            text = metrics.text()
            assert 'resource="app:sync:~' in text
            assert "123" not in text.replace("0.123", "") and "user" not in text
            assert "t-a" not in text and "c-a" not in text

        world.run(main())


def test_locks_of_the_app_are_counted_held_lost_and_not_given_in_time() -> None:
    with World(1) as world:

        async def main() -> None:
            holder, asker = join(world, "a"), join(world, "b")

            async def hold() -> None:
                async with holder.tab.lock("case", scope="user:123"):
                    await holder.ports.clock.sleep(1000.0)

            async def ask() -> None:
                with pytest.raises(LockTimeout):
                    async with asker.tab.lock("case", scope="user:123", timeout=2.0):
                        pass

            holder.agent.start(hold())
            await world.until(lambda: holder.services.locks.count == 1)
            await asker.agent.start(ask())
            found, other = holder.call(holder.tab.metrics), asker.call(asker.tab.metrics)
            assert (found.locks_held, found.locks_lost, found.lock_timeouts) == (1, 0, 0)
            assert (other.locks_held, other.locks_lost, other.lock_timeouts) == (0, 0, 1)
            holder.call(lambda: holder.ports.locks.drop("c-a"))
            await world.until(lambda: holder.services.locks.count == 0)
            found = holder.call(holder.tab.metrics)
            assert (found.locks_held, found.locks_lost, found.lock_timeouts) == (0, 1, 0)
            assert metrics_view(found)["locks"] == {"held": 0, "lost": 1, "timedOut": 0}
            lines = found.text().splitlines()
            for expected in ("tabhelm_locks_held 0", "tabhelm_locks_lost_total 1", "tabhelm_lock_timeouts_total 0"):
                assert expected in lines
            report = await holder.agent.start(diagnosis(holder.tab, "salt"))
            assert report["metrics"]["locks"]["lost"] == 1

        world.run(main())
