"""What is told when npm fails."""

from __future__ import annotations

import pytest

from tabhelm_build.node import npm_reason


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (
            "npm warn old\nnpm error code ECONNREFUSED\nnpm error FetchError: request to /ws failed, reason: refused\n",
            "FetchError: request to /ws failed, reason: refused",
        ),
        (
            "npm error code EINTEGRITY\nnpm error sha512-a integrity checksum failed\n",
            "sha512-a integrity checksum failed",
        ),
        ("npm error Cannot read the lock\n", "Cannot read the lock"),
        ("killed\n", "no reason given"),
    ],
)
def test_the_reason_is_one_telling_line(output: str, reason: str) -> None:
    assert npm_reason(output) == reason
