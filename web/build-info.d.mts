/** Rendered by the bundle: which build this is. */
export const buildId: string;
/** The version of tabhelm. */
export const version: string;
