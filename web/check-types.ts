/** The client must be what tabhelm.d.ts declares, in both directions: a missing and an undeclared export are errors. */
import type * as declared from "./tabhelm.js";
import * as actual from "./tabhelm.mjs";

export const typed: typeof declared = actual;
export const complete: Record<keyof typeof declared, unknown> & Record<Exclude<keyof typeof actual, keyof typeof declared>, never> = actual;
