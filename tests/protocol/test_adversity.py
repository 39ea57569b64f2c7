"""The schedules of the run in real tabs: what each of them holds, whatever the seed."""

from __future__ import annotations

from e2e.offline_queue.adversity import SEATS, TAB_FAULTS, TROUBLES, WIPE, schedule

SEEDS = range(200)


def test_every_schedule_holds_every_misfortune_of_the_tabs_and_of_the_receiver() -> None:
    for seed in SEEDS:
        steps = schedule(seed, 200)
        assert {step.fault for step in steps} == {*TAB_FAULTS, WIPE}, f"seed {seed}"
        befalls = {step.trouble for step in steps if step.order == TROUBLES.get(step.trouble)}
        assert befalls == {*TROUBLES}, f"seed {seed} lacks {sorted({*TROUBLES} - befalls)}"
        assert [step.order for step in steps if step.fault == WIPE] == [{"hold": True}]


def test_a_seed_gives_the_same_schedule_again_and_another_seed_another() -> None:
    for seed in SEEDS:
        assert schedule(seed, 200, 5) == schedule(seed, 200, 5)
    assert len({str(list(map(str, schedule(seed, 200)))) for seed in SEEDS}) == len(SEEDS)


def test_there_are_as_many_operations_as_asked_for_and_no_identifier_twice() -> None:
    for seed in SEEDS:
        calls = [call for step in schedule(seed, 500) for seat in SEATS for call in step.calls[seat]]
        assert sum(len(call.payloads) for call in calls) >= 500
        given = [op_id for call in calls for op_id in call.ids or ()]
        assert len(given) == len(set(given)) > 0
