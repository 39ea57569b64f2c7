"""What the bundle weighs: every kilobyte of the client costs each page."""

from __future__ import annotations

import gzip
from pathlib import Path


def test_the_page_client_stays_under_ten_kilobytes(bundle: Path) -> None:
    size = len(gzip.compress((bundle / "tabhelm.mjs").read_bytes(), 9))
    print(f"\ntabhelm.mjs: {size} bytes gzipped (limit 10,000)")
    assert size < 10_000
