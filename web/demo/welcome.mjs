// One sentence for the first visit, until it is put away.
import { $ } from "./dom.mjs";

const SEEN = "inspections:welcomed";

export function welcome() {
  let seen = null;
  try {
    seen = localStorage.getItem(SEEN);
  } catch {
    // storage denied: it is shown each time
  }
  $("hint").hidden = seen !== null;
  $("hint-close").addEventListener("click", () => {
    $("hint").hidden = true;
    try {
      localStorage.setItem(SEEN, "1");
    } catch {
      // shown again next time
    }
    $("title").focus();
  });
}
