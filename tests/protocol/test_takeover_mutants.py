"""Each rule of the takeover is there for a reason: without it, one of the schedules goes wrong.

The schedules themselves pass with the real core (``test_takeover``).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from lab import Lab
from test_takeover import (
    all_stopped_for_a_while,
    blamed_though_it_lives,
    first_in_line_stopped,
    issued_after_the_takeover,
    robberies,
    slow_to_begin,
    stalled_before_its_epoch,
    throttled_and_hidden,
    two_protocols,
)

from tabhelm.authority.web_locks import WebLocksHold
from tabhelm.host import silent_engine
from tabhelm.leadership import silence
from tabhelm.presence import beacon
from tabhelm.presence.signs import Signs

SEEDS = 8


def judged(
    schedule: Callable[[Lab], Coroutine[Any, Any, Any]],
    judge: Callable[[Lab], bool],
    seeds: int = SEEDS,
    limit: float = 3600.0,
) -> bool:
    """Whether the judge finds something in one of the seeds."""
    for seed in range(seeds):
        lab = Lab(seed)
        lab.run(schedule(lab), check=False, limit=limit)
        if judge(lab):
            return True
    return False


def robbed(lab: Lab) -> bool:
    return bool(robberies(lab))


def robbed_twice(lab: Lab) -> bool:
    return len(robberies(lab)) > 1


def test_a_takeover_that_is_not_counted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = WebLocksHold.__init__

    def uncounted(self: WebLocksHold, *args: Any, forced: bool = False, **options: Any) -> None:
        original(self, *args, forced=False, **options)

    monkeypatch.setattr(WebLocksHold, "__init__", uncounted)
    assert judged(stalled_before_its_epoch, lambda lab: bool(issued_after_the_takeover(lab)), seeds=72)


def test_time_that_is_counted_though_we_stood_still_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Signs, "_slept", lambda self, now: 0.0)
    assert judged(all_stopped_for_a_while, robbed, limit=7 * 24 * 3600.0)


def test_a_hidden_page_that_promises_as_much_as_ever_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beacon, "HIDDEN_BEAT", 5.0)
    assert judged(throttled_and_hidden, robbed)


def test_a_standby_that_does_not_believe_the_announced_beat_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Signs.lives
    monkeypatch.setattr(Signs, "lives", lambda self, resources, beat, *rest: original(self, resources, 5.0, *rest))
    assert judged(throttled_and_hidden, robbed)


def test_a_standby_that_gives_nobody_the_time_to_begin_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "BEGINNING", 0.0)
    assert judged(slow_to_begin, robbed)


def test_a_change_of_leaders_that_is_no_sign_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "STAGGER", 0.0)  # which would hide it from all but the first in line
    assert not judged(slow_to_begin, robbed)
    monkeypatch.setattr(Signs, "went", lambda self, resources, now, sender: None)
    monkeypatch.setattr(Signs, "granted", lambda self, resource, now, sender: None)
    assert judged(slow_to_begin, robbed)


def test_queue_leaders_that_speak_to_their_own_protocol_alone_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beacon, "is_queue", lambda resource: False)
    assert judged(two_protocols, robbed_twice)


def test_standbys_that_all_take_over_at_once_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "STAGGER", 0.0)
    assert judged(first_in_line_stopped, robbed_twice)


def test_an_engine_that_is_condemned_without_being_asked_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silent_engine, "encode", lambda message: "{}")
    assert judged(blamed_though_it_lives, robbed)
