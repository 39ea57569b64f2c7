// The list of what happened, newest first.
import { $, element } from "./dom.mjs";
import { clockTime } from "./names.mjs";

const LINES = 80;

export function tell(text, tone = "") {
  const line = element("li", { class: tone }, element("time", {}, clockTime(Date.now())), element("span", {}, text));
  $("log").prepend(line);
  while ($("log").children.length > LINES) $("log").lastElementChild.remove();
}
