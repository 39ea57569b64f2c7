// A boot that fails.
export async function boot() {
  throw Object.assign(new Error("the interpreter's file is not WebAssembly"), { code: "boot-wasm" });
}
