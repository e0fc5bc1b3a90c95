/** An adapter of push handlers for AWS Lambda behind a function URL, API Gateway or a load balancer. */

import type { Push } from "./push.js";

/** The parts that events of API Gateway (both formats), function URLs and load balancers share. */
export interface HttpEvent {
  readonly headers?: Readonly<Record<string, string | undefined>> | null;
  readonly body?: string | null;
  readonly isBase64Encoded?: boolean;
  readonly httpMethod?: string;
  readonly requestContext?: { readonly http?: { readonly method?: string } };
}

/** What Lambda makes a response from. */
export interface HttpResult {
  readonly statusCode: number;
  readonly headers: Record<string, string>;
  readonly body: string;
}

/**
 * Returns a handler for Lambda. Handlers in the background are waited for, because Lambda stops the
 * process at the response: give them a type without `background`, or a timeout that is long enough.
 *
 * @example
 * export const handler = lambdaHandler(push);
 */
export function lambdaHandler(push: Push): (event: HttpEvent) => Promise<HttpResult> {
  return async (event) => {
    const method = event.requestContext?.http?.method ?? event.httpMethod ?? "GET";
    const headers = new Headers();
    for (const [name, value] of Object.entries(event.headers ?? {})) {
      if (value !== undefined) headers.set(name, value);
    }
    const init: RequestInit = { method, headers };
    if (event.body != null && method !== "GET" && method !== "HEAD") {
      init.body = event.isBase64Encoded
        ? Uint8Array.from(atob(event.body), (letter) => letter.charCodeAt(0))
        : event.body;
    }
    const answer = await push.fetch(new Request("https://push.invalid/", init));
    await push.idle();
    const found: Record<string, string> = {};
    answer.headers.forEach((value, name) => {
      found[name] = value;
    });
    return { statusCode: answer.status, headers: found, body: await answer.text() };
  };
}
