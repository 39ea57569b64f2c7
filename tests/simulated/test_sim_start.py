"""Tabs of one engine that start together: what each of them is told must not grow with their number."""

from __future__ import annotations

from collections import Counter

from tabhelm.host.engine import start
from tabhelm.simulated import PageContext, SimulatedBrowser, SimulatedPage, World


async def lead(context: PageContext) -> None:
    while True:
        await context.sleep(1.0)


def told(count: int) -> list[Counter[str]]:
    """For each of so many pages that join and stand at once, how many events of which type it was told."""
    with World(count) as world:
        browser = SimulatedBrowser(world, start)
        pages: list[SimulatedPage] = []

        async def main() -> None:
            for number in range(count):
                page = browser.open(f"p{number}")
                page.begin_join()
                pages.append(page)
            elections = [page.lead("job", lead) for page in pages]
            await world.until(lambda: sum(election.acting for election in elections) == 1, within=30.0)
            await world.sleep(10.0)
            assert sum(election.acting for election in elections) == 1

        world.run(main())
        return [Counter(event["type"] for event in page.events) for page in pages]


def test_steps_of_others_that_lead_nowhere_are_not_told() -> None:
    most = {count: max(each["leadership-changed"] for each in told(count)) for count in (5, 10, 20)}
    print("\nat most told of steps:", most)
    assert max(most.values()) <= 12
    # Each page is told its own first steps, and everybody that one leads.
    assert min(each["leadership-changed"] for each in told(10)) >= 2
