"""A policy means the same in a page script and in Python: both refuse the same ones."""

from __future__ import annotations

import re
from typing import Any

from e2e.kit import Site, uncaught

from tabhelm.election import LeadershipPolicy
from tabhelm.errors import InvalidPolicy
from tabhelm.testing import ChaosBrowser

TIMES = ("graceMs", "maxHoldMs", "stallAfterMs", "coolDownMs", "healthEveryMs", "enginePatienceMs", "backoffMs")
POLICIES: list[dict[str, Any]] = [
    {},
    *({key: value} for key in TIMES for value in (500, 0, -1, "5", True, [])),
    {"maxBackoffMs": 60_000},
    {"maxBackoffMs": 10},  # shorter than backoff
    {"backoffMs": 20_000},
    *({"takeoverAfterMs": value} for value in (10_000, 9_999, "never", "soon", 0)),
    *({"actingAlarmMs": value} for value in (10_000, "never", 0, "soon", False)),
    *({"visible": value} for value in ("any", "prefer", "require", "maybe", True)),
    *({"online": value} for value in (False, "yes", 1)),
    *({"newest": value} for value in (False, 1)),
    *({"requires": value} for value in ([], "x", [""], [1], {})),
    *({"prefers": value} for value in ([], ["x"], "x", [""], [1])),
    {"requires": ["x"], "prefers": ["x"]},
    {"requires": ["x"], "prefers": ["y"]},
    *({"session": value} for value in ("any", "user:1", "", "a b", 7)),
    *({"fence": value} for value in ("/api/operations", "", 7)),
    *({"authorities": value} for value in (["web-locks"], [], "web-locks", [""], ["web-locks", "web-locks"])),
    *({key: "text"} for key in ("eligible", "score")),
    {"grace": 5},
    {"triggerWindow": [0, 1]},
]
_ASK = """(policies) => {
  window.asked = policies.map((policy, number) => {
    try {
      const election = tab.lead(`policy-${number}`, ({ signal }) => new Promise((end) => {
        signal.addEventListener("abort", () => end(), { once: true });
      }), policy);
      const asked = { election, led: false };
      election.addEventListener("status", ({ detail }) => { asked.led ||= detail.state === "leading"; });
      return asked;
    } catch (error) {
      return { refused: `${error.name}: ${error.message}` };
    }
  });
}"""
# Taken: the engine has looked at it, whatever else keeps the tab from leading. If it refuses, that ends the election.
_ANSWERS = """() => {
  const answers = asked.map(({ election, refused, led }) => {
    const { state, reason, error } = election?.status ?? {};
    if (refused) return refused;
    if (state === "stopped") return `stopped: ${error?.message ?? reason}`;
    const idle = state === "idle" && /^(capability-missing|no-session)$/.test(reason);
    return led || state === "leading" || idle ? "taken" : null;
  });
  return answers.every((answer) => answer !== null) && answers;
}"""


def snake(key: str) -> str:
    """The same key in Python: the engine's own words reach the page."""
    return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", key.removesuffix("Ms").replace("AfterMs", ""))


def of_python(policy: dict[str, Any]) -> str:
    try:
        LeadershipPolicy.from_wire(policy)
    except InvalidPolicy as error:
        return str(error)
    return "taken"


async def test_pages_and_python_refuse_the_same_policies(browser: ChaosBrowser, site: Site) -> None:
    tab = await site.joined(browser)
    await tab.evaluate(_ASK, POLICIES)
    answers = await tab.until(_ANSWERS, what="every policy to be taken or refused")
    told = [(policy, page, of_python(policy)) for policy, page in zip(POLICIES, answers, strict=True)]
    assert [each for each in told if (each[1] == "taken") != (each[2] == "taken")] == []
    for policy, page, python in told:
        if page != "taken":
            assert any(name in page for key in policy for name in (key, snake(key))), f"{policy}: {page}"
            assert any(name in python for key in policy for name in (key, snake(key))), f"{policy}: {python}"
    assert await uncaught(tab) == []
