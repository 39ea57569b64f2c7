"""Payloads for a sender of one's own: whatever structured clone takes, as it was at the call."""

from __future__ import annotations

from e2e.kit import Site, uncaught

from tabhelm.testing import ChaosBrowser

from .lane import attempt, drained, stats
from .senders import hold, sending

_ALL_KINDS = """async () => {
  const cyclic = { name: "cycle", list: [] };
  cyclic.list.push(cyclic);
  const bytes = new Uint8Array([0, 1, 254, 255]);
  const values = {
    map: new Map([["a", 1], [{ key: true }, new Map()]]),
    set: new Set([1, "1", NaN]),
    date: new Date(86_400_000),
    regexp: /a+b/gi,
    big: 2n ** 70n,
    nothing: undefined,
    null: null,
    odd: [NaN, -0, Infinity, undefined, , null],
    buffer: bytes.buffer,
    view: new Uint16Array([1, 65_535]),
    blob: new Blob([bytes], { type: "application/x-test" }),
    file: new File(["text"], "name.txt", { type: "text/plain", lastModified: 42 }),
    error: new RangeError("out of it"),
    boxed: Object("text"),
    image: new ImageData(new Uint8ClampedArray(16), 2, 2),
    cyclic,
    text: "ä \\ud800 \\u2028",
    true: true,
    number: 1.5,
  };
  window.got = {};
  behave = async ({ id, payload }) => { got[id] = payload; };
  for (const [id, payload] of Object.entries(values)) await q.enqueue(payload, { id, partition: id });
  await q.enqueue(values, { id: "all" });
  window.values = values;
}"""

_COMPARE = """async () => {
  const same = (one, two, seen = new Map()) => {
    if (Object.is(one, two)) return true;
    if (typeof one !== "object" || typeof two !== "object" || !one || !two) return false;
    const kind = (value) => Object.prototype.toString.call(value);
    if (kind(one) !== kind(two)) return false;
    if (seen.get(one) === two) return true;
    seen.set(one, two);
    const lists = (each) => {
      if (each instanceof Map) return [...each].flat();
      if (each instanceof Set) return [...each];
      if (each instanceof Date) return [each.getTime()];
      if (each instanceof RegExp) return [each.source, each.flags];
      if (each instanceof Error) return [each.name, each.message];
      if (each instanceof ArrayBuffer) return [...new Uint8Array(each)];
      if (ArrayBuffer.isView(each)) return [...each];
      if (each instanceof ImageData) return [each.width, each.height, ...each.data];
      if (each instanceof Blob) return [each.size, each.type, each.name, each.lastModified];
      if (typeof each.valueOf() !== "object") return [each.valueOf()];
      return [Object.keys(each).length, ...Object.entries(each).flat()];
    };
    const [first, second] = [lists(one), lists(two)];
    return first.length === second.length && first.every((value, at) => same(value, second[at], seen));
  };
  const wrong = [];
  for (const [id, value] of Object.entries({ ...values, all: values })) if (!same(value, got[id])) wrong.push(id);
  const bytes = [...new Uint8Array(await got.blob.arrayBuffer())];
  return { wrong, bytes, text: await got.all.file.text(), cycle: got.cyclic.list[0] === got.cyclic };
}"""


async def test_every_kind_arrives_as_it_went(browser: ChaosBrowser, site: Site) -> None:
    # From a page that only enqueues, through storage, to the sender of another page.
    leads = await sending(browser, site)
    await leads.evaluate(_ALL_KINDS)
    await drained(leads, done=20)
    assert await leads.evaluate(_COMPARE) == {
        "wrong": [],
        "bytes": [0, 1, 254, 255],
        "text": "text",
        "cycle": True,
    }
    assert await uncaught(leads) == []


async def test_what_cannot_be_cloned_is_refused_with_its_place(browser: ChaosBrowser, site: Site) -> None:
    tab = await sending(browser, site)
    told = await tab.evaluate("""async () => {
      const told = {};
      const payloads = {
        function: { a: [1, { run() {} }] }, symbol: { "odd key": Symbol("s") }, node: { deep: { body: document.body } },
        map: new Map([["x", new Map([["y", () => {}]])]]), set: new Set([1, () => {}]),
        promise: Promise.resolve(), proxy: new Proxy({}, {}), getter: { get now() { throw new Error("not now"); } },
      };
      for (const [name, payload] of Object.entries(payloads)) {
        told[name] = await q.enqueue(payload).then(() => "taken", (error) => `${error.name}: ${error.message}`);
      }
      told.many = await q.enqueueAll([{ payload: 1 }, { payload: { f() {} } }]).catch(({ message }) => message);
      return told;
    }""")
    places = {
        "function": "payload.a[1].run is a function",
        "symbol": 'payload["odd key"] is a symbol',
        "node": "payload.deep.body is of the kind HTMLBodyElement",
        "map": 'payload.get("x").get("y") is a function',
        "set": "payload.values()[1] is a function",
        "promise": "payload is of the kind Promise",
        "getter": "not now",
        "many": "items[1].payload.f is a function",
    }
    for name, place in places.items():
        assert place in told[name], (name, told[name])
    assert all(told[name].startswith("TypeError") for name in places if name != "many"), told
    assert told["proxy"] != "taken"
    assert (await stats(tab))["queued"] == 0


async def test_the_payload_is_what_it_was_at_the_call_and_calls_keep_their_order(
    browser: ChaosBrowser, site: Site
) -> None:
    tab = await sending(browser, site)
    ids = await tab.evaluate("""async () => {
      window.order = [];
      behave = async ({ payload }) => { order.push(payload.n ?? (await payload.blob.text()).length); };
      const changing = { n: 1 };
      const calls = [q.enqueue(changing, { partition: "p" })];
      changing.n = "changed afterwards";
      // A large Blob takes long to read, and those behind it wait.
      calls.push(q.enqueue({ blob: new Blob(["x".repeat(3_000_000)]) }, { partition: "p" }));
      for (let n = 2; n < 6; n++) calls.push(q.enqueue({ n }, { partition: "p" }));
      return Promise.all(calls);
    }""")
    await drained(tab, done=6)
    assert len(set(ids)) == 6
    assert await tab.evaluate("() => order") == [1, 3_000_000, 2, 3, 4, 5]


async def test_the_same_id_again_is_the_same_or_an_error(browser: ChaosBrowser, site: Site) -> None:
    tab = await sending(browser, site)
    await hold(tab)
    outcomes = await tab.evaluate("""async () => {
      const bytes = (...list) => ({ when: new Date(5), blob: new Blob([new Uint8Array(list)]), key: "k" });
      const enqueue = (payload, more) => q.enqueue(payload, { id: "one", ...more }).catch(({ code }) => code);
      const { when, blob, key } = bytes(1, 2, 3);
      return [
        await enqueue(bytes(1, 2, 3)),
        await enqueue(bytes(1, 2, 3)),
        await enqueue({ key, blob, when }), // the order of keys says nothing
        await enqueue(bytes(1, 2, 4)),
        await enqueue({ ...bytes(1, 2, 3), when: 5 }),
        await enqueue(bytes(1, 2, 3), { partition: "another" }),
      ];
    }""")
    assert outcomes == ["one", "one", "one", "identifier-reused", "identifier-reused", "identifier-reused"]
    await hold(tab, False)
    await drained(tab, done=1)
    again = await tab.evaluate("""async () => {
      const same = { when: new Date(5), blob: new Blob([new Uint8Array([1, 2, 3])]), key: "k" };
      return [await q.enqueue(same, { id: "one" }), (await q.stats()).queued];
    }""")
    assert again == ["one", 0], "a receipt knows it after it was sent"
    causes = await tab.evaluate("""async () => {
      const enqueue = (cause) => q.enqueue(new Error("no", { cause }), { id: "two" }).catch(({ code }) => code);
      const kept = structuredClone(new Error("no", { cause: 1 })).cause === 1;  // not by all browsers
      return [await enqueue("a"), await enqueue("a"), await enqueue("b"), kept ? "identifier-reused" : "two"];
    }""")
    assert causes[:2] == ["two", "two"] and causes[2] == causes[3]


async def test_clones_count_their_bytes_and_outlive_the_page(browser: ChaosBrowser, site: Site) -> None:
    tab = await sending(browser, site, flush=False, maxBytes=50_000)
    await tab.evaluate("() => q.enqueue({ blob: new Blob([new Uint8Array(40_000)]) }, { id: 'big' })")
    at = await stats(tab)
    assert 40_000 < at["bytes"] < 41_000
    full = await attempt(tab, "enqueue", "x" * 20_000)
    assert full["error"]["code"] == "queue-full", full
    await tab.kill_process()
    later = await sending(browser, site)
    await later.evaluate("() => { behave = async ({ payload }) => { window.size = payload.blob.size; }; }")
    await drained(later)
    assert (await stats(later))["bytes"] == 0
    assert await later.evaluate("() => window.size ?? sends[0].payload.blob.size") == 40_000


async def test_a_queue_may_ask_for_json_though_its_sender_is_its_own(browser: ChaosBrowser, site: Site) -> None:
    tab = await sending(browser, site, payloads="json")
    refused = await tab.evaluate("() => q.enqueue({ at: new Map() }).catch(({ message }) => message)")
    assert "payload.at is of the kind Map, which JSON cannot hold" in refused
    assert (await attempt(tab, "enqueue", {"n": 1}))["value"]
    await drained(tab, done=1)
