/** Rendered by the bundle: what the interpreter of this build is made of. */
export const pyodideVersion: string;
export const wheel: string;
export const micropipWheel: string;
export const snapshot: string;
/** Path in the bundle → size in bytes and SRI hash. */
export const files: Record<string, { size: number; integrity: string }>;
/** A lock file of Pyodide with the packages of this bundle alone. */
export const lock: { info: Record<string, string>; packages: Record<string, unknown> };
