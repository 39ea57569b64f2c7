"""In which engine, on which host: what is the same code in one more setting is thorough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tabhelm.testing.driver import ENGINES


def in_each_engine(name: str, values: Sequence[Any], ids: Sequence[str], *, elsewhere: str) -> pytest.MarkDecorator:
    """Each of ``values`` in Chromium; in the other engines the one of the id ``elsewhere``, and the rest thoroughly."""
    settings = [
        pytest.param(
            engine,
            value,
            id=f"{engine}-{each}",
            marks=[] if engine == "chromium" or each == elsewhere else pytest.mark.thorough,
        )
        for engine in ENGINES
        for value, each in zip(values, ids, strict=True)
    ]
    return pytest.mark.parametrize(("engine", name), settings, indirect=["engine"])
