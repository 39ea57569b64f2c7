// What the server accepted: here one sees that everything was applied exactly once.
import { $, element, keyedList, say } from "./dom.mjs";
import { clockTime, plural, tabLabel } from "./names.mjs";

const WORDS = { add: "added", rename: "renamed to", complete: "completed", report: "status report:" };

export function effectsView(self) {
  let titles = new Map();
  const show = keyedList($("effects"), ({ number }) => number, (effect) => row(effect, self(), titles));
  return ({ accepted, doubled, repeated, refused, newest, cases }) => {
    titles = new Map(cases.map(({ id, title }) => [id, title]));
    say($("accepted"), String(accepted));
    say($("doubled"), String(doubled));
    say($("repeated"), String(repeated));
    say($("refused"), String(refused));
    $("doubled").className = doubled ? "bad" : "good";
    say(
      $("effects-note"),
      !accepted ? "Nothing was accepted yet." : doubled ? `${plural(doubled, "effect")} applied twice: that must never be.` : `${plural(accepted, "effect")}, each applied exactly once.`,
    );
    show(newest);
  };
}

function row({ payload, partition, epoch, owner, accepted_at_ms: at }, self, titles) {
  const what = WORDS[payload?.kind] ?? payload?.kind ?? "a note";
  const title = payload?.title ?? payload?.text ?? titles.get(payload?.case) ?? partition;
  return element(
    "li",
    {},
    element("time", {}, clockTime(at)),
    element("span", { class: "title" }, `${what} `, element("strong", {}, String(title))),
    element("span", { class: "badges" }, tabLabel(owner.split(":")[0], self), element("span", { class: "muted" }, `epoch ${epoch}`)),
  );
}
