// The list of cases: rename in place, complete with one press.
import { $, element, keyedList, say } from "./dom.mjs";

/** @returns a function that shows a list; `record(change)` is called for what a person does. */
export function caseList(record) {
  const show = keyedList($("cases"), (each) => each.id, ({ id }) => row(id, record));
  return (cases, note) => {
    show(cases);
    const open = cases.filter((each) => !each.completed).length;
    const pending = cases.filter((each) => each.pending).length;
    const count = cases.length ? `${open} open of ${cases.length}${pending ? `, ${pending} not at the server yet` : ""}` : "No cases yet: add the first one.";
    say($("cases-state"), note ? `${count}. ${note}` : count);
  };
}

function row(id, record) {
  const title = element("span", { class: "title" });
  const state = element("span", { class: "badge" });
  const rename = element("button", { type: "button", class: "quiet", "aria-expanded": "false" }, "Rename");
  const complete = element("button", { type: "button", class: "quiet" }, "Complete");
  const input = element("input", { required: true, maxLength: 120, autocomplete: "off" });
  const cancel = element("button", { type: "button", class: "quiet" }, "Cancel");
  const form = element("form", { class: "line", hidden: true }, input, element("button", { type: "submit" }, "Save"), cancel);
  const line = element("li", {}, title, state, element("span", { class: "line actions" }, rename, complete), form);

  const edit = (open) => {
    form.hidden = !open;
    rename.setAttribute("aria-expanded", String(open));
    if (open) (input.value = title.textContent), input.focus(), input.select();
    else rename.focus();
  };
  rename.addEventListener("click", () => edit(form.hidden));
  cancel.addEventListener("click", () => edit(false));
  form.addEventListener("keydown", (event) => event.key === "Escape" && edit(false));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const name = input.value.trim();
    if (!name) return;
    edit(false);
    if (name !== title.textContent) record({ kind: "rename", case: id, title: name });
  });
  complete.addEventListener("click", () => {
    record({ kind: "complete", case: id });
    rename.focus(); // its own button goes away
  });

  line.show = (each) => {
    say(title, each.title);
    say(state, each.pending ? "waiting" : each.completed ? "completed" : "open");
    line.className = [each.pending && "pending", each.completed && "completed"].filter(Boolean).join(" ");
    complete.hidden = each.completed;
    rename.setAttribute("aria-label", `Rename ${each.title}`);
    complete.setAttribute("aria-label", `Complete ${each.title}`);
    input.setAttribute("aria-label", `New title of ${each.title}`);
  };
  return line;
}
