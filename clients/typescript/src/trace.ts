/**
 * The trace context of the job whose handler runs.
 *
 * Node keeps it over `await`. Other runtimes that lack `AsyncLocalStorage` carry no context: pass
 * `job.traceparent` as a header of the job there.
 */

interface Storage {
  run<T>(value: string | undefined, action: () => T): T;
  getStore(): string | undefined;
}
type Builtins = { process?: { getBuiltinModule?: (name: string) => unknown } };

const hooks = (globalThis as Builtins).process?.getBuiltinModule?.("node:async_hooks") as
  | { AsyncLocalStorage: new () => Storage }
  | undefined;
const storage: Storage | undefined = hooks && new hooks.AsyncLocalStorage();

/** Returns the trace context of the job whose handler calls. */
export function currentTraceparent(): string | undefined {
  return storage?.getStore();
}

/** Runs `action` with a trace context. */
export function withTraceparent<T>(value: string | undefined, action: () => T): T {
  return storage ? storage.run(value, action) : action();
}
