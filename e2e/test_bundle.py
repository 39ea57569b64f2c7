"""What the bundle weighs: every kilobyte of the client costs each page."""

from __future__ import annotations

import gzip
from pathlib import Path

LIMIT = 10 * 1024
"""Ten kilobytes, of 1024 bytes as everything else about files is counted; the window host took the last of them."""


def test_the_page_client_stays_under_ten_kilobytes(bundle: Path) -> None:
    size = len(gzip.compress((bundle / "tabhelm.mjs").read_bytes(), 9))
    print(f"\ntabhelm.mjs: {size} bytes gzipped (limit {LIMIT:,})")
    assert size <= LIMIT
