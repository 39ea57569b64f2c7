// The little that is needed to write a page without a framework.

/** @param {string} id */
export const $ = (id) => document.getElementById(id);

/** An element with properties (`class`, `data-…` and `aria-…` become attributes) and children. */
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined) continue;
    if (key === "class" || key.includes("-")) made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Set a text only if it is another one: a live region would say it again. */
export function say(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

/**
 * Keep one row for each item, by key, in the order of the items. `make` gives a row; `row.show(item)` fills it. Rows stay
 * the same elements, so that focus, selection and half-typed text stay where they are.
 */
export function keyedList(list, key, make) {
  const rows = new Map();
  return (items) => {
    const wanted = new Map(items.map((item) => [key(item), item]));
    for (const [id, row] of rows) if (!wanted.has(id)) row.remove(), rows.delete(id);
    const focused = document.activeElement;
    let place = list.firstElementChild;
    for (const [id, item] of wanted) {
      const row = rows.get(id) ?? make(item);
      rows.set(id, row);
      row.show?.(item);
      if (row === place) place = place.nextElementSibling;
      else list.insertBefore(row, place);
    }
    // An element that is moved loses the focus.
    if (focused !== document.activeElement && list.contains(focused)) focused.focus({ preventScroll: true });
  };
}
