"""What all tabs of one engine share, and how it is given up for a while with its page."""

from __future__ import annotations

from tabhelm.services.services import Services

__all__ = ["Services"]
