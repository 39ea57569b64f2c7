"""How channels must behave."""

from __future__ import annotations

from cases_kit import cases, eventually, fresh

from tabhelm.ports import Ports


async def messages_arrive_in_order(here: Ports, there: Ports) -> None:
    name = fresh(here, "channel")
    sender, receiver = here.channels.open(name), there.channels.open(name)
    got: list[object] = []
    receiver.subscribe(got.append)
    sent = [f"message {number} äß\U0001f980" for number in range(50)]
    for text in sent:
        sender.post(text)
    await eventually(there, lambda: len(got) >= len(sent), "all messages arrive")
    assert got == sent, f"arrived as {got}"
    sender.close()
    receiver.close()


async def nobody_hears_himself(here: Ports, there: Ports) -> None:
    name = fresh(here, "channel")
    one, two = here.channels.open(name), there.channels.open(name)
    heard: list[object] = []
    answered: list[object] = []
    one.subscribe(heard.append)
    two.subscribe(answered.append)
    one.post("ping")
    await eventually(there, lambda: answered == ["ping"], "the other hears")
    two.post("pong")
    await eventually(here, lambda: heard == ["pong"], f"only the other is heard (heard {heard})")
    one.close()
    two.close()


async def after_close_messages_are_dropped(here: Ports, there: Ports) -> None:
    name = fresh(here, "channel")
    sender, closed, witness = here.channels.open(name), there.channels.open(name), there.channels.open(name)
    got: list[object] = []
    seen: list[object] = []
    closed.subscribe(got.append)
    witness.subscribe(seen.append)
    sender.post("zero")
    closed.close()
    closed.close()
    closed.post("from a closed channel")
    await eventually(there, lambda: seen == ["zero"], "the open channel hears")
    sender.post("one")
    await eventually(there, lambda: seen == ["zero", "one"], f"only the open channel is heard ({seen})")
    sender.close()
    sender.post("two")
    await there.clock.sleep(0.05)
    assert got == [], f"a closed channel heard {got}"
    assert seen == ["zero", "one"], f"a closed channel sent {seen}"
    witness.close()


async def channels_of_other_names_are_apart(here: Ports, there: Ports) -> None:
    one, two = here.channels.open(fresh(here, "channel")), there.channels.open(fresh(here, "channel"))
    got: list[object] = []
    two.subscribe(got.append)
    one.post("hello")
    await here.clock.sleep(0.05)
    assert got == [], f"heard {got} from another channel"
    one.close()
    two.close()


CASES = cases(
    messages_arrive_in_order,
    nobody_hears_himself,
    after_close_messages_are_dropped,
    channels_of_other_names_are_apart,
)
