// Rendered at build time; see templates/service-worker-files.mjs.j2.
export const version: string;
export const buildId: string;
export const files: Record<string, { size: number; integrity: string }>;
