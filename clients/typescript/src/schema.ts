/**
 * Typed data of jobs: zod, or any schema with `parse` or with the Standard Schema interface.
 *
 * Nothing here imports a schema library.
 */

/** A schema of Standard Schema (zod, valibot, arktype, ...). */
export interface StandardSchema<T> {
  readonly "~standard": {
    readonly validate: (value: unknown) => StandardResult<T> | Promise<StandardResult<T>>;
    readonly types?: { readonly output: T } | undefined;
  };
}
type StandardResult<T> =
  | { readonly value: T; readonly issues?: undefined }
  | { readonly issues: ReadonlyArray<{ readonly message: string }> };

/** Reads a JSON value as a `T`, and throws if it is none. */
export type Schema<T> = { readonly parse: (value: unknown) => T } | StandardSchema<T>;

/** A job type with the schema of its data. */
export interface JobType<T> {
  readonly name: string;
  readonly schema?: Schema<T> | undefined;
}

/**
 * Returns a job type whose data is what `schema` reads.
 *
 * @example
 * const mail = jobType("mail", z.object({ to: z.email() }));
 * await client.enqueue(mail, { to: "ann@example.com" });
 */
export function jobType<T = unknown>(name: string, schema?: Schema<T>): JobType<T> {
  return { name, schema };
}

/** Returns `value` as the schema reads it. */
export async function decode<T>(schema: Schema<T> | undefined, value: unknown): Promise<T> {
  if (schema === undefined) return value as T;
  if ("parse" in schema) return schema.parse(value);
  const result = await schema["~standard"].validate(value);
  if (result.issues !== undefined) {
    throw new TypeError(result.issues.map((issue) => issue.message).join("; "));
  }
  return result.value;
}

/** Returns an instant as the API writes it. */
export function instant(value: Date | string): string {
  return typeof value === "string" ? value : value.toISOString();
}
