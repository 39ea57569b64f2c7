"""What the chaos harness raises.

ChaosError
├── BrowserGone                      the browser process ended or never came up; carries its last words
├── TabGone                          the tab is closed or its renderer died
├── ScriptError                      code that was to run in the page threw; of ``until``, or without Playwright
├── TabUnresponsive (TimeoutError)   the tab did not answer in time: it hangs, is stopped, or the machine is overloaded
└── WaitTimeout (AssertionError)     an awaited condition did not become true

``WaitTimeout`` is an ``AssertionError`` because in a test it is one: the awaited thing did not happen.
"""

from __future__ import annotations


class ChaosError(Exception):
    """Base of everything that the harness raises on purpose."""


class BrowserGone(ChaosError):
    """The browser process ended, or did not come up; the message ends with what it last wrote to stderr."""


class TabGone(ChaosError):
    """The tab cannot be used any more: it was closed, or its renderer crashed or was killed."""


class TabUnresponsive(ChaosError, TimeoutError):
    """The tab's main thread did not answer in time."""


class ScriptError(ChaosError):
    """Code that was evaluated in a page threw; the message holds the page's error. Of ``until``, and where there is no
    Playwright of ``evaluate``."""


class WaitTimeout(ChaosError, AssertionError):
    """A condition did not become true in time; the message names it and the last value seen."""
