// As an app does it: the client is bundled, the engine is served as it is, from where `engineUrl` says.
import { join } from "tabhelm";

const engineUrl = new URLSearchParams(location.search).get("engine") ?? undefined;
try {
  window.tab = await join({ app: "bundled", engineUrl, enginePatienceMs: 6_000 });
  window.outcome = { host: tab.host, from: tab.engine.from };
} catch ({ code, message }) {
  window.outcome = { code, message };
}
