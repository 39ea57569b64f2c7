// A boot that never ends, as a truncated download can cause.
export const boot = () => new Promise(() => {});
