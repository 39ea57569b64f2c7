"""``election.ask``: from what a tab says to a question, and until it is settled or the election is over."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tabhelm.errors import ElectionStopped
from tabhelm.leadership.asking import Question, check_timeout
from tabhelm.leadership.bodies import body
from tabhelm.leadership.serving import check_key, check_method
from tabhelm.leadership.states import State, Stopped

if TYPE_CHECKING:
    from tabhelm.leadership.election import Election
    from tabhelm.leadership.exchange import Exchange


async def ask(
    exchange: Exchange, election: Election, method: str, args: Any, timeout: float, idempotency_key: str | None
) -> Any:
    """See ``Election.ask``."""
    question = put(exchange, election, method, args, timeout, idempotency_key)
    done = asyncio.Event()
    question.on_settled(done.set)
    try:
        await done.wait()
    finally:
        exchange.asking.withdraw(question)
    return question.result()


def put(
    exchange: Exchange,
    election: Election,
    method: str,
    args: Any,
    timeout: float,
    idempotency_key: str | None = None,
    *,
    call: str | None = None,
    fresh: bool = True,
) -> Question:
    """Put a question in an election's name; it is settled with it at the latest."""
    check_method(method)
    seconds = check_timeout(timeout)
    check_key(idempotency_key)
    text = body("args", args)
    if isinstance(election.status, Stopped):
        raise ElectionStopped(election.key, election.status.reason)
    info = election.candidate.info()
    question = exchange.asking.put(election.key, method, text, info, seconds, idempotency_key, call=call, fresh=fresh)

    def stopped(state: State) -> None:
        if isinstance(state, Stopped):
            exchange.asking.settle(question, error=ElectionStopped(election.key, state.reason))

    question.on_settled(election.subscribe(stopped))
    return question
