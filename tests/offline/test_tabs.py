"""Which release a tab is of is written down for the service workers that come after."""

from __future__ import annotations

import json
from pathlib import Path

from tabhelm_build.node import run_node

ROOT = Path(__file__).parents[2]
OLD = {"build": "b1", "version": "1"}


def test_a_tab_that_is_being_opened_is_known_to_the_service_worker_that_takes_over() -> None:
    script = Path(__file__).with_name("tabs_script.mjs")
    said = json.loads(
        run_node([str(script), str(ROOT / "web" / "keeper-tabs.mjs")], cwd=ROOT, what="two service workers")
    )
    assert said == {
        "whileItIsOnItsWay": [OLD],
        "forItsFirstFile": OLD,
        "neverBorn": [],
        "forgotten": None,
        "seen": [OLD],
        "closedSoonAfter": [],
        "daysLater": [OLD],
        "besideAMark": [OLD],
    }
