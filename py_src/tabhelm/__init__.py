"""tabhelm: one tab at the helm. Coordination of same-origin browser tabs, in Python under Pyodide.

The rooms, from the ground up (each imports only rooms above it in this list):

``errors``, ``names``, ``messages``  what can go wrong, what is a thing called, what goes over the wire
``ports``                            what we ask of a browser (Protocols; no implementation)
``browser`` / ``simulated``          the answer of the real browser / of a simulated one with virtual time
``fencing``, ``presence``            who may still write; who is here
``election``, ``authority``          who should lead (a hint); what decides
``leadership``, ``queue``            who does lead and how it stops; what is still to be sent
``observe``                          what happened
``tab``, ``host``                    one joined tab; several tabs in one engine
``server``, ``testing``              the receiving end; real-tab chaos for pytest (both CPython only)
"""

from __future__ import annotations

__version__ = "0.1.0"
