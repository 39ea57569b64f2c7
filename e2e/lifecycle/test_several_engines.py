"""Several engines at once: two builds with a shared engine each, a page with its own interpreter, a page of Python."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from e2e.kit import Site, now, until, write
from e2e.python_pages.kit import PythonPage

from tabhelm.testing import ChaosBrowser, ChaosTab


@dataclass
class Member:
    """One tab, whatever runs its Python: how to see that it leads, to write, and to end it."""

    name: str
    tab: ChaosTab
    tab_id: str
    engine: str
    look: Callable[[], Awaitable[dict[str, Any] | None]]
    write: Callable[[str], Awaitable[int | None]]
    roster: Callable[[], Awaitable[set[str]]]
    told: Callable[[], Awaitable[str | None]]
    """Which tab it is told leads."""
    resign: Callable[[], Awaitable[Any]]

    async def epoch(self) -> int:
        """The epoch in which its loop runs now; 0 if none does."""
        if self.tab.silent:
            return 0
        found = await self.look()
        return int(found["epoch"]) if found is not None and found["leads"] else 0


async def bundled(browser: ChaosBrowser, site: Site, name: str, base: str, host: str) -> Member:
    tab = await site.joined(browser, base=base, host=host)
    await site.stand(tab)
    return Member(
        name,
        tab,
        await tab.evaluate("() => tab.id"),
        await tab.evaluate("() => tab.engine.id"),
        look=lambda: now(tab),
        write=lambda name: write(tab, name),
        roster=lambda: _ids(tab.evaluate("() => tab.presence().tabs.map(({ tabId }) => tabId)")),
        told=lambda: tab.evaluate("() => stands.job.election.leader()?.tabId ?? null"),
        resign=lambda: tab.evaluate("() => stands.job.election.stop('enough')"),
    )


async def of_python(browser: ChaosBrowser, site: Site, bundle: Path) -> Member:
    place: Any = SimpleNamespace(url=site.url, wheel=f"/tabhelm/{next(bundle.glob('tabhelm-*.whl')).name}")
    page = await PythonPage.joined(browser, place)
    await page("stand", "job", {})
    identity = (await page("who"))["id"]

    async def roster() -> set[str]:
        return set((await page("presence"))["tabs"])

    async def told() -> str | None:
        found: str | None = (await page("presence"))["leaders"].get("job")
        return found

    return Member(
        "Python page",
        page.tab,
        identity,
        "its own",
        look=lambda: page("now", "job"),
        write=lambda name: page("write", name),
        roster=roster,
        told=told,
        resign=lambda: page("stop", "job"),
    )


async def _ids(answer: Awaitable[Any]) -> set[str]:
    return set(await answer)


async def the_leader(members: list[Member], above: int) -> tuple[Member, int]:
    """Wait until exactly one of them leads, with a higher epoch."""

    async def only() -> tuple[Member, int] | None:
        found = [(member, epoch) for member in members if (epoch := await member.epoch())]
        return found[0] if len(found) == 1 and found[0][1] > above else None

    return await until(only, f"one leader with an epoch above {above}", 30)


async def test_five_engines_share_one_election(browser: ChaosBrowser, two_builds: Site, bundle: Path) -> None:
    site = two_builds
    members = [
        await bundled(browser, site, "first build", "/tabhelm", "shared"),
        await bundled(browser, site, "first build again", "/tabhelm", "shared"),
        await bundled(browser, site, "second build", "/tabhelm2", "shared"),
        await bundled(browser, site, "window host", "/tabhelm", "window"),
        await of_python(browser, site, bundle),
    ]
    assert len(await browser.shared_workers(url_contains="engine.mjs")) == 2
    assert members[0].engine == members[1].engine and len({member.engine for member in members}) == 4
    everybody = {member.tab_id for member in members}
    for member in members:

        async def sees_all(member: Member = member) -> bool:
            return await member.roster() == everybody

        await until(sees_all, f"{member.name} to see all five")

    ends: list[Callable[[Member], Awaitable[Any]]] = [
        lambda member: member.resign(),
        lambda member: member.tab.freeze(),
        lambda member: member.tab.close(),
        lambda member: member.tab.kill_process(),
    ]
    left, writes, epoch = list(members), [], 0
    for end in ends:
        leading, epoch = await the_leader(left, epoch)
        assert await leading.write(f"of-{epoch}") == 200, f"{leading.name} leads with epoch {epoch}"
        writes.append((f"of-{epoch}", epoch))
        for member in left:

            async def knows(member: Member = member, leading: Member = leading) -> bool:
                return await member.told() == leading.tab_id

            await until(knows, f"{member.name} to know that {leading.name} leads")
        await end(leading)
        left.remove(leading)
    last, epoch = await the_leader(left, epoch)
    assert left == [last] and await last.write("of-the-last") == 200
    assert [(each["op_id"], each["epoch"]) for each in await site.effects()] == [*writes, ("of-the-last", epoch)]
