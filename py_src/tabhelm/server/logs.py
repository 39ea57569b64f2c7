"""The receiver's log. What senders and applications put into texts cannot forge lines of it."""

from __future__ import annotations

import logging
import traceback


def escaped(text: str) -> str:
    """One line of text: ends of lines, codes of terminals and whatever else does not print are shown as escapes."""
    if text.isprintable():
        return text
    shown = (each if each.isprintable() else each.encode("unicode_escape", "surrogatepass").decode() for each in text)
    return "".join(shown)


class _EscapedTraceback(logging.Filter):
    """Writes the traceback itself: the texts of exceptions may quote what a sender sent.

    Handlers that want the exception still find it in ``exc_info``.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text = _traceback(traceback.TracebackException.from_exception(record.exc_info[1]))
        return True


def _traceback(error: traceback.TracebackException) -> str:
    before: list[str] = []
    if error.__cause__ is not None:
        before = [_traceback(error.__cause__), "which caused:"]
    elif error.__context__ is not None and not error.__suppress_context__:
        before = [_traceback(error.__context__), "during the handling of which came:"]
    stack = "".join(error.stack.format()).rstrip()
    said = escaped("".join(error.format_exception_only()).strip())
    return "\n".join([*before, "Traceback (most recent call last):", stack, said])


log = logging.getLogger("tabhelm.server")
log.addFilter(_EscapedTraceback())
