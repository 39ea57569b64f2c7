// What pages' Python loops are made of: wheels that are fetched and unpacked once for each engine.

export class Wheels {
  #runtime;
  /** @type {Map<string, Promise<void>>} */
  #unpacked = new Map(); // URL → promise of its unpacking

  /** @param {Promise<{pyodide: any}>} runtime the interpreter, once it is there */
  constructor(runtime) {
    this.#runtime = runtime;
  }

  /** Have a wheel there. Throws what says which one is not, and why. @param {string} url */
  unpack(url) {
    let unpacked = this.#unpacked.get(url);
    if (!unpacked) {
      unpacked = this.#unpackOnce(url);
      this.#unpacked.set(url, unpacked);
      unpacked.catch(() => this.#unpacked.delete(url)); // a later page may have more luck
    }
    return unpacked;
  }

  /** @param {string} url */
  async #unpackOnce(url) {
    const response = await fetch(url, { credentials: "same-origin" }).catch((error) => {
      throw new Error(`the wheel ${url} cannot be fetched: ${error.message}`);
    });
    if (!response.ok) throw new Error(`the wheel ${url} cannot be fetched: status ${response.status}`);
    const bytes = await response.arrayBuffer();
    const { pyodide } = await this.#runtime;
    try {
      pyodide.unpackArchive(bytes, "wheel");
      pyodide.runPython("import importlib; importlib.invalidate_caches()");
    } catch (error) {
      throw new Error(`the wheel ${url} cannot be unpacked: ${/** @type {any} */ (error)?.message ?? error}`);
    }
  }
}
