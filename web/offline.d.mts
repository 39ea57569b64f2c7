/** Pages that open without a network: docs/offline.md. */

/**
 * `starting`; `installing`: files are being fetched and checked; `ready`: this page opens offline; `failed`: it does not, and
 * works as before (`code`, `reason`); `unsupported`: this browser, or this window, has no service workers; `removed`.
 */
export type OfflineState = "starting" | "installing" | "ready" | "failed" | "unsupported" | "removed";

/**
 * `download`, `content`: a file could not be had, or is not the one that was built; `quota`, `storage`: it could not be kept;
 * `not-registered`, `not-installed`: the browser refused; `no-service-worker`.
 */
export type OfflineCode = "download" | "content" | "quota" | "storage" | "not-registered" | "not-installed" | "no-service-worker";

export interface OfflineStatus {
  buildId: string;
  bundleVersion: string;
  /** The app's release, as it was told. */
  version: string;
  /** How many files of the app are kept. */
  files: number;
  /** Size of the bundle's files. */
  bytes: number;
}

export interface OfflineEvents {
  state: CustomEvent<{ state: OfflineState; code: OfflineCode | null; reason: string | null }>;
  /** A newer service worker waits until the tabs of the older one are gone; or it failed, and the older one goes on. */
  update: CustomEvent<{ waiting: boolean; code?: OfflineCode; reason?: string }>;
}

export interface Offline extends EventTarget {
  readonly state: OfflineState;
  readonly code: OfflineCode | null;
  readonly reason: string | null;
  readonly updateWaiting: boolean;
  readonly registration: ServiceWorkerRegistration | null;
  /** Let the waiting service worker take over now. Living tabs keep what they began with; a reload gets the new release. */
  activate(): void;
  /** What the service worker in charge keeps; `null` if there is none. */
  status(): Promise<OfflineStatus | null>;
  /** Unregister it, and delete what it kept. */
  remove(): Promise<void>;
  addEventListener<K extends keyof OfflineEvents>(type: K, listener: (event: OfflineEvents[K]) => void): void;
  addEventListener(type: string, listener: EventListenerOrEventListenerObject | null): void;
}

/**
 * Register a service worker that keeps this bundle, and `files` of the app.
 *
 * Never throws for what a browser or a server does: see `state`, and the events `state` and `update`.
 */
export function keepOffline(options?: {
  /** Default: `service-worker.js` beside this module. An app's own one imports that. */
  worker?: string | URL;
  /** Whose pages it serves, default `/`. Above the script's own folder the server must send `Service-Worker-Allowed`. */
  scope?: string;
  /** `module` if the worker's script is one (default: `classic`). */
  type?: WorkerType;
  /** Files of the app, pages too (without their query). With many, use an own service worker: they are in its address. */
  files?: (string | URL)[];
  /** The release that `files` are of; must change with them. */
  version?: string;
  /** A joined tab: when it hears of a newer version, the service worker is looked up anew. */
  tab?: { addEventListener(type: "event", listener: (event: CustomEvent<any>) => void): void };
}): Offline;
