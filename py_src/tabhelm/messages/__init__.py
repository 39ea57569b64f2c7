"""What goes over the BroadcastChannel between engines: one JSON text a message, and nothing is trusted.

A ``Beacon`` says which tabs an engine has and what they lead, ``LeaderSigns`` which queues they lead (for engines of
other protocols, which share the queues); a ``Nudge`` says that a queue changed, an ``Ask`` wants one engine to speak.
All are hints. Anything else on the channel (other versions, other libraries, hostile or broken pages) is counted and
ignored.
"""

from __future__ import annotations

from tabhelm.messages.beacons import MAX_NEXT, Ask, Beacon, LeaderNote, LeaderSigns, Nudge, TabNote
from tabhelm.messages.fields import MAX_ITEMS, MAX_WORD, Progress
from tabhelm.messages.locks import FlightEnd, LockAnswer, LockAsk
from tabhelm.messages.questions import MAX_BODY, Accepted, Questioning, Reply, Request, Resync, StateNote
from tabhelm.messages.wire import MAX_TEXT, WIRE_VERSION, Ignored, Message, decode, encode

__all__ = [
    "MAX_BODY",
    "MAX_ITEMS",
    "MAX_NEXT",
    "MAX_TEXT",
    "MAX_WORD",
    "WIRE_VERSION",
    "Accepted",
    "Ask",
    "Beacon",
    "FlightEnd",
    "Ignored",
    "LeaderNote",
    "LeaderSigns",
    "LockAnswer",
    "LockAsk",
    "Message",
    "Nudge",
    "Progress",
    "Questioning",
    "Reply",
    "Request",
    "Resync",
    "StateNote",
    "TabNote",
    "decode",
    "encode",
]
