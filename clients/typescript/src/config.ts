/**
 * Configuration as code: queues, types, schedules and triggers, declared and then applied.
 *
 * A declaration is the whole configuration of its resource: a setting that it leaves out has its
 * default. Resources that are not declared are left alone; nothing is ever deleted.
 */

import type { Client } from "./client.js";
import { DEFAULTS } from "./defaults.js";
import { NotFoundError } from "./errors.js";
import { json, path } from "./http.js";
import type { QueueSettings, ScheduleSettings, TriggerSettings, TypeSettings } from "./types.js";

// In the order in which they are applied: types name queues, schedules name types.
const ROUTES = {
  queue: "queues",
  "job type": "job-types",
  schedule: "schedules",
  trigger: "triggers",
} as const;
// Settings of job types that the server accepts and never shows.
const WRITE_ONLY = new Set(["signing_secret", "callback_signing_secret", "password"]);
// Words in the names of a target's headers that the server does not show either.
const SECRET_HEADER = /authorization|cookie|secret|token|password|key/i;
const SECRET = "***";
// Inside of a setting, what the server adds to an object that leaves it out.
const INNER_DEFAULTS: Record<string, readonly unknown[]> = {
  base_seconds: [2],
  complete: ["on_delivery", "on_result"],
  encoding: ["json"],
  invocation: ["wait"],
  jitter: ["full"],
  max_seconds: [3600],
  strategy: ["exponential"],
  tz: ["UTC"],
};

/** What can be declared. */
export type Kind = keyof typeof ROUTES;
type Settings = Record<string, unknown>;
interface Declaration {
  readonly kind: Kind;
  readonly name: string;
  readonly settings: Settings;
}

/** Declarations of resources, in any order. */
export class Config {
  readonly #declared = new Map<string, Declaration>();

  /** Every declaration, in the order in which it is applied. */
  get declared(): Declaration[] {
    const kinds = Object.keys(ROUTES);
    return [...this.#declared.values()].sort(
      (a, b) => kinds.indexOf(a.kind) - kinds.indexOf(b.kind) || (a.name < b.name ? -1 : 1),
    );
  }

  /** Returns another configuration with the same declarations. */
  copy(): Config {
    const copy = new Config();
    for (const [key, declaration] of this.#declared) copy.#declared.set(key, declaration);
    return copy;
  }

  /** Whether a resource is declared. */
  has(kind: Kind, name: string): boolean {
    return this.#declared.has(`${kind} ${name}`);
  }

  /** Declares a queue. */
  queue(name: string, settings: Partial<QueueSettings> = {}): this {
    return this.#declare("queue", name, settings);
  }

  /** Declares a job type. */
  jobType(name: string, settings: Partial<TypeSettings> = {}): this {
    return this.#declare("job type", name, settings);
  }

  /** Declares a schedule. */
  schedule(name: string, settings: ScheduleSettings): this {
    return this.#declare("schedule", name, settings);
  }

  /** Declares a trigger. */
  trigger(name: string, settings: TriggerSettings): this {
    return this.#declare("trigger", name, settings);
  }

  #declare(kind: Kind, name: string, settings: object): this {
    const key = `${kind} ${name}`;
    const plain = JSON.parse(JSON.stringify(settings)) as Settings;
    const other = this.#declared.get(key);
    if (other && JSON.stringify(other.settings) !== JSON.stringify(plain)) {
      throw new TypeError(`the ${key} is declared twice, with different settings`);
    }
    this.#declared.set(key, { kind, name, settings: plain });
    return this;
  }
}

/** A setting that differs. */
export interface Difference {
  readonly field: string;
  /** What the server has. */
  readonly current: unknown;
  readonly wanted: unknown;
}

/** What a plan does with one resource. */
export interface Step {
  readonly action: "create" | "change" | "keep";
  readonly kind: Kind;
  readonly name: string;
  readonly differences: readonly Difference[];
  readonly settings: Settings;
  readonly etag: string | undefined;
}

/** The steps that lead from the server's configuration to the declared one. */
export class Plan {
  readonly #client: Client;

  constructor(
    client: Client,
    readonly steps: readonly Step[],
  ) {
    this.#client = client;
  }

  /** Whether anything is to change. */
  get hasChanges(): boolean {
    return this.steps.some((step) => step.action !== "keep");
  }

  /** The changes, as text for people. */
  toString(): string {
    const lines = this.steps.filter((step) => step.action !== "keep").flatMap(linesOf);
    return lines.join("\n") || "nothing to change";
  }

  /**
   * Does the steps.
   *
   * @throws {PreconditionFailedError} if a resource has changed since the plan was made. The steps
   * before it are done then; a new plan has the rest.
   */
  async apply(): Promise<void> {
    for (const { action, kind, name, settings, etag } of this.steps) {
      if (action === "keep") continue;
      // A repeat with `If-Match` could be refused after its first delivery succeeded.
      await this.#client.request("PUT", path(ROUTES[kind], name), {
        body: settings,
        headers: etag ? { "if-match": etag } : undefined,
        repeatable: !etag,
      });
    }
  }
}

function linesOf(step: Step): string[] {
  const sign = step.action === "create" ? "+" : "~";
  return [
    `${sign} ${step.kind} ${step.name}`,
    ...step.differences.map(({ field, current, wanted }) => {
      const old = step.action === "create" ? "" : `${shown(field, current)} -> `;
      return `    ${field}: ${old}${shown(field, wanted)}`;
    }),
  ];
}

/** Returns the plan for a configuration. */
export async function makePlan(client: Client, config: Config, secrets: boolean): Promise<Plan> {
  const steps: Step[] = [];
  for (const { kind, name, settings } of config.declared) {
    const answer = await client.http
      .request("GET", path(ROUTES[kind], name))
      .catch((error: unknown) => {
        if (error instanceof NotFoundError) return undefined;
        throw error;
      });
    if (answer === undefined) {
      const differences = Object.keys(settings)
        .sort()
        .map((field) => ({ field, current: null, wanted: settings[field] }));
      steps.push({ action: "create", kind, name, differences, settings, etag: undefined });
      continue;
    }
    const current = json(answer) as Settings;
    const compared = kind === "job type" ? withoutSecrets(settings) : settings;
    const differences = differencesOf(DEFAULTS[kind] ?? {}, compared, current);
    const hasSecrets = compared !== settings || secretsOf(current).length > 0;
    if (secrets && kind === "job type" && hasSecrets) {
      const target = path(ROUTES[kind], name);
      differences.push(...(await changedSecrets(client, target, settings, current)));
    }
    const action = differences.length > 0 ? "change" : "keep";
    const etag = answer.headers.get("etag") ?? undefined;
    steps.push({ action, kind, name, differences, settings, etag });
  }
  return new Plan(client, steps);
}

/** The secrets that the settings would change: only the server can compare them. */
async function changedSecrets(
  client: Client,
  target: string,
  settings: Settings,
  current: Settings,
): Promise<Difference[]> {
  const preview = await client.request<Settings>("PUT", target, {
    body: settings,
    query: { dry_run: true },
  });
  const shownIn = (view: Settings, field: string) =>
    secretsOf(view).includes(field) ? SECRET : null;
  return ((preview.changed_secrets ?? []) as string[]).map((field) => ({
    field,
    current: shownIn(current, field),
    wanted: shownIn(preview, field),
  }));
}

function secretsOf(view: Settings): string[] {
  return (view.secrets as string[] | undefined) ?? [];
}

/** The settings of a job type as the server shows them; the same object if none is a secret. */
function withoutSecrets(settings: Settings): Settings {
  let found = false;
  const without = (fields: unknown, isSecret: (name: string) => boolean): unknown => {
    if (!isObject(fields)) return fields;
    const shown = Object.entries(fields).filter(([name]) => !isSecret(name));
    found ||= shown.length < Object.keys(fields).length;
    return Object.fromEntries(shown);
  };
  const isWriteOnly = (name: string) => WRITE_ONLY.has(name);
  const visible = without(settings, isWriteOnly) as Settings;
  if (isObject(visible.target)) {
    const target = without(visible.target, isWriteOnly) as Settings;
    if (target.basic_auth) target.basic_auth = without(target.basic_auth, isWriteOnly);
    if (target.headers) {
      target.headers = without(target.headers, (name) => SECRET_HEADER.test(name));
    }
    visible.target = target;
  }
  return found ? visible : settings;
}

function differencesOf(defaults: Settings, settings: Settings, current: Settings): Difference[] {
  const fields = [...new Set([...Object.keys(defaults), ...Object.keys(settings)])].sort();
  return fields.flatMap((field) => {
    const given = settings[field] ?? undefined;
    const wanted = given ?? defaults[field];
    // A PUT without it leaves a schedule paused or not.
    const stays = field === "paused" && given === undefined;
    const isSame = stays || covers(current[field], wanted);
    return isSame ? [] : [{ field, current: current[field] ?? null, wanted: wanted ?? null }];
  });
}

/** Whether `actual` is `wanted` with nothing but defaults in addition. */
function covers(actual: unknown, wanted: unknown): boolean {
  if (isObject(wanted) && isObject(actual)) {
    if (!Object.entries(wanted).every(([name, value]) => covers(actual[name], value))) return false;
    return Object.keys(actual).every((name) => name in wanted || isDefault(name, actual[name]));
  }
  if (isEmpty(wanted)) return isEmpty(actual);
  if (Array.isArray(wanted) && Array.isArray(actual)) {
    return (
      wanted.length === actual.length && wanted.every((item, index) => covers(actual[index], item))
    );
  }
  return actual === wanted;
}

function isDefault(name: string, value: unknown): boolean {
  if (isObject(value)) {
    return Object.entries(value).every(([inner, item]) => isDefault(inner, item));
  }
  return isEmpty(value) || (INNER_DEFAULTS[name]?.includes(value) ?? false);
}

function isObject(value: unknown): value is Settings {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isEmpty(value: unknown): boolean {
  if (Array.isArray(value)) return value.length === 0;
  if (isObject(value)) return Object.keys(value).length === 0;
  return value === undefined || value === null || value === false || value === "";
}

function shown(field: string, value: unknown): string {
  const hide = (name: string, inner: unknown) =>
    WRITE_ONLY.has(name) || name === "headers" ? SECRET : inner;
  const isSecret = value === SECRET || (WRITE_ONLY.has(field) && value !== null);
  return isSecret ? SECRET : JSON.stringify(value, hide);
}
