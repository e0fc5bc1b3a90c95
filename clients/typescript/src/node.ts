/** An adapter of push handlers for Node's `http` and for Express. */

import type { IncomingMessage, ServerResponse } from "node:http";
import { Readable } from "node:stream";
import type { Push } from "./push.js";

/**
 * Returns a listener for `http.createServer` and a handler for Express. With Express, register it
 * before any parser of bodies: the signature is over the bytes.
 *
 * @example
 * app.post("/jobs", nodeHandler(push));
 */
export function nodeHandler(
  push: Push,
): (request: IncomingMessage, response: ServerResponse) => Promise<void> {
  return async (request, response) => {
    const headers = new Headers();
    for (const [name, value] of Object.entries(request.headers)) {
      if (value !== undefined) headers.set(name, Array.isArray(value) ? value.join(", ") : value);
    }
    const method = request.method ?? "GET";
    const hasBody = method !== "GET" && method !== "HEAD";
    const init: RequestInit & { duplex?: "half" } = { method, headers };
    if (hasBody) {
      init.body = Readable.toWeb(request) as ReadableStream<Uint8Array>;
      init.duplex = "half";
    }
    const answer = await push
      .fetch(new Request("http://push.invalid/", init))
      .catch((error: unknown) => new Response(String(error), { status: 500 }));
    response.writeHead(answer.status, Object.fromEntries(answer.headers));
    response.end(Buffer.from(await answer.arrayBuffer()));
  };
}
