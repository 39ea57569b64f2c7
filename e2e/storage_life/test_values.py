"""What structured clone takes goes through the database as it is, in every engine; and whether the storage is kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from e2e.browser_ports import site
from e2e.browser_ports.room import PythonRoom

from tabhelm.testing import ChaosTab
from tabhelm.testing.driver import ENGINES
from tabhelm.testing.pytest_engines import EnginePool, require_engine

KINDS = """async (without) => {
  const cyclic = { name: "cyclic" };
  cyclic.self = cyclic;
  const shared = [1];
  const file = new File(["content"], "name.txt", { type: "text/plain", lastModified: 7 });
  const values = {
    map: new Map([["a", new Map([[1, "one"]])]]), set: new Set([1, "x"]), date: new Date(1234),
    regexp: /a+b/gi, bytes: new Uint8Array([0, 255]), floats: new Float64Array([0.5, NaN]),
    buffer: new Uint8Array([1, 2, 3]).buffer, view: new DataView(new ArrayBuffer(4)),
    blob: new Blob(["some text"], { type: "text/plain" }), file, inside: { deep: [new Blob(["inner"])] },
    bigint: 2n ** 70n, cyclic, twice: { a: shared, b: shared }, hole: [, 1], undef: undefined, nothing: null,
    field: { undef: undefined, nothing: null }, error: new RangeError("too far"), nan: NaN, minus: [-0],
    text: "", empty: {}, list: [], no: false, boxed: new Number(3),
  };
  for (const kind of without) delete values[kind];
  const call = pyodide.pyimport("inside").through_the_database;
  const found = await call(values);
  call.destroy();
  const tell = (value) => `${Object.prototype.toString.call(value)}`;
  const same = {
    map: ({ map }) => map.get("a").get(1) === "one", set: ({ set }) => set.has(1) && set.has("x"),
    date: ({ date }) => date.getTime() === 1234, regexp: ({ regexp }) => String(regexp) === "/a+b/gi",
    bytes: ({ bytes }) => bytes[1] === 255, floats: ({ floats }) => floats[0] === 0.5 && Number.isNaN(floats[1]),
    buffer: ({ buffer }) => new Uint8Array(buffer)[2] === 3, view: ({ view }) => view.byteLength === 4,
    blob: async ({ blob }) => (await blob.text()) === "some text" && blob.type === "text/plain",
    file: async ({ file }) => (await file.text()) === "content" && file.name === "name.txt" && file.lastModified === 7,
    inside: async ({ inside }) => (await inside.deep[0].text()) === "inner",
    bigint: ({ bigint }) => bigint === 2n ** 70n, cyclic: ({ cyclic }) => cyclic.self === cyclic,
    twice: ({ twice }) => twice.a === twice.b, hole: ({ hole }) => !(0 in hole) && hole[1] === 1,
    undef: ({ undef }) => undef === undefined, nothing: ({ nothing }) => nothing === null,
    field: ({ field }) => "undef" in field && field.undef === undefined && field.nothing === null,
    error: ({ error }) => error instanceof RangeError && error.message === "too far",
    nan: ({ nan }) => Number.isNaN(nan), minus: ({ minus }) => Object.is(minus[0], -0), text: ({ text }) => text === "",
    empty: ({ empty }) => Object.keys(empty).length === 0, list: ({ list }) => list.length === 0,
    no: ({ no }) => no === false, boxed: ({ boxed }) => typeof boxed === "object" && boxed.valueOf() === 3,
  };
  const wrong = {};
  for (const kind of Object.keys(values)) {
    if (!(await same[kind](found)) || tell(found[kind]) !== tell(values[kind]))
      wrong[kind] = `${tell(found[kind])} ${String(found[kind])}`;
  }
  return wrong;
}"""
FILES = ("blob", "file", "inside")
STORE_A_BLOB = """async () => {
  const call = pyodide.pyimport("inside").refused;
  const told = await call(new Blob(["some text"]));
  call.destroy();
  return told;
}"""
UNCLONEABLE = """async (kind) => {
  const values = { function: { run() {} }, symbol: { name: Symbol("s") }, element: document.body };
  const call = pyodide.pyimport("inside").refused;
  const told = await call(values[kind]);
  call.destroy();
  return told;
}"""


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=ENGINES)
async def room(request: pytest.FixtureRequest, engine_pool: EnginePool) -> AsyncIterator[PythonRoom]:
    engine = require_engine(request.param)
    with site.serve() as origin:
        browser = await engine_pool.get(engine)
        inside = Path(__file__).with_name("inside.py").read_text()
        yield await PythonRoom.enter(browser, origin, {"inside.py": inside})
        await engine_pool.end(engine)


async def test_every_kind_of_value_goes_through_as_it_is(room: PythonRoom) -> None:
    without = () if _keeps_files(room) else FILES
    assert await room.tab.evaluate(KINDS, list(without)) == {}


async def test_a_browser_that_keeps_no_files_says_so_and_nothing_is_written(room: PythonRoom) -> None:
    if _keeps_files(room):
        pytest.skip("this browser keeps them")
    assert "Error preparing Blob/File data" in await room.tab.evaluate(STORE_A_BLOB)


def _keeps_files(room: PythonRoom) -> bool:
    """WebKit stores no Blob in a private session, and a driven one is."""
    return room.tab.browser.engine != "webkit"


@pytest.mark.parametrize("kind", ["function", "symbol", "element"])
async def test_what_cannot_be_cloned_is_refused_and_nothing_is_written(room: PythonRoom, kind: str) -> None:
    told = await room.tab.evaluate(UNCLONEABLE, kind)
    assert told.startswith("database 'test:values:") and "DataCloneError" in told


async def test_python_s_own_data_comes_back_as_it_was(room: PythonRoom) -> None:
    assert await room.call("inside.python_values") == "as they were"


async def test_persistence_is_asked_for_on_demand(room: PythonRoom) -> None:
    if not isinstance(room.tab, ChaosTab):
        pytest.skip("Firefox asks the user, whom nobody plays here; WebKitGTK is asked in no test")
    told = await room.call("inside.persistence")
    # Headless Chromium decides by itself, and says no to a site that nobody knows.
    assert told["persist"] in (True, False) and told["persisted"] in (True, False)
    assert told["usage"] >= 0 and told["quota"] > 1_000_000
