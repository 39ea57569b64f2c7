// Names that people can tell apart and say aloud: "Otter 3f" instead of "3f09c17ab2…".
import { element } from "./dom.mjs";

const ANIMALS = (
  "Badger Bear Beaver Bison Crane Crow Deer Dolphin Eagle Falcon Ferret Finch Fox Gecko Goose Hare Hawk Heron Horse Ibex Jackdaw " +
  "Jay Koala Lark Lemur Lion Lynx Magpie Marten Mole Moose Newt Otter Owl Panda Puffin Rabbit Raven Robin Salmon Seal Shrew " +
  "Sparrow Squirrel Stoat Stork Swan Swift Tern Tiger Toad Trout Turtle Vole Walrus Weasel Whale Wolf Wombat Wren Yak Zebra"
).split(" ");

const LABELS = {
  "offline-queue:mutations": "sending the changes",
  "status-report": "writing the report",
};

/** A number that two ids seldom share (FNV-1a). */
const number = (id) => [...id].reduce((sum, letter) => Math.imul(sum ^ letter.charCodeAt(0), 16_777_619) >>> 0, 2_166_136_261);

/** The tab's name: an animal and the beginning of its id. */
export const tabName = (id) => `${ANIMALS[number(id) % ANIMALS.length]} ${id.slice(0, 2)}`;

/** What a resource is about; with or without the app's name in front, as events have it. */
export function resourceName(resource) {
  const own = resource.replace(/^inspections:/, "");
  return LABELS[own] ?? own;
}

/** The tab's name with its colour, and whether it is this one. */
export function tabLabel(id, self) {
  const dot = element("span", { class: "dot", "aria-hidden": "true" });
  dot.style.setProperty("--hue", String((number(id) >>> 8) % 360)); // through the CSSOM: a strict policy allows no style attribute
  const label = element("span", { class: "tab-name", title: `Tab ${id}` }, dot, element("strong", {}, tabName(id)));
  if (id === self) label.append(" ", element("span", { class: "me" }, "(this tab)"));
  return label;
}

/** A duration for people. */
export function duration(ms) {
  if (ms < 1_000) return `${Math.max(0, Math.round(ms))} ms`;
  if (ms < 10_000) return `${(ms / 1_000).toFixed(1)} s`;
  if (ms < 100_000) return `${Math.round(ms / 1_000)} s`;
  if (ms < 5_400_000) return `${Math.round(ms / 60_000)} min`;
  return `${Math.round(ms / 3_600_000)} h`;
}

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
export const clockTime = (ms) => CLOCK.format(ms);
export const plural = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;
