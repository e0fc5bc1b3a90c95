/** The programs in TypeScript of the book's pages work as they are printed. */

import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import typescript from "typescript";
import { DevServer } from "../src/testing.js";

// This file is dist-test/test/pages.test.js when it runs.
const DOCS = new URL("../../../../docs/", import.meta.url);
const SECRET = "an-example";

type Module = Record<string, (argument: unknown) => Promise<unknown>>;

/** The modules of a page, which import this package. */
async function load(page: string): Promise<Module[]> {
  process.env.TIDEGATE_SECRET = SECRET;
  const text = readFileSync(new URL(page, DOCS), "utf8");
  const programs = [...text.matchAll(/```ts\n(.*?)```/gs)].map((found) => found[1] ?? "");
  const modules: Module[] = [];
  for (const [number, program] of programs.entries()) {
    const { outputText } = typescript.transpileModule(program, {
      compilerOptions: {
        module: typescript.ModuleKind.ESNext,
        target: typescript.ScriptTarget.ES2022,
      },
    });
    const own = outputText
      .replace('from "tidegate"', 'from "./src/index.js"')
      .replace('from "tidegate/lambda"', 'from "./src/lambda.js"');
    // Not in the folder whose files are run as tests.
    const file = new URL(`../page-${page}-${number}.mjs`, import.meta.url);
    writeFileSync(file, own);
    modules.push((await import(file.href)) as Module);
  }
  return modules;
}

function pushed(): { body: string; headers: Record<string, string> } {
  const callback = { url: "http://127.0.0.1:9/v1/jobs/resize/1", token: "t" };
  const job = { id: "1", type: "resize", attempt: 1, max_attempts: 3, attributes: {} };
  const body = JSON.stringify({ ...job, data: { width: 8 }, callback });
  const at = String(Math.floor(Date.now() / 1000));
  const mac = createHmac("sha256", SECRET).update(`m.${at}.${body}`);
  const signature = `v1,${mac.digest("base64")}`;
  return {
    body,
    headers: {
      "webhook-id": "m",
      "webhook-timestamp": at,
      "webhook-signature": signature,
    },
  };
}

test("the route of Next.js answers pushes, and its action enqueues", async (t) => {
  const server = await DevServer.start();
  t.after(() => server.stop());
  await server.client.request("PUT", "/v1/job-types/resize", { body: {} });
  process.env.TIDEGATE_URL = server.client.url;
  const [route, actions] = await load("nextjs.md");
  const request = new Request("http://127.0.0.1/api/jobs", { method: "POST", ...pushed() });
  const answer = (await route?.POST?.(request)) as Response;
  assert.deepEqual([answer.status, await answer.json()], [200, { width: 4 }]);
  const id = await actions?.resize?.(800);
  const [job] = await server.assertEnqueued("resize", { data: { width: 800 } });
  assert.equal(job?.id, id);
});

test("the function behind a URL answers pushes", async () => {
  const [page] = await load("aws-workers.md");
  const event = { ...pushed(), requestContext: { http: { method: "POST" } } };
  const answer = (await page?.handler?.(event)) as { statusCode: number; body: string };
  assert.deepEqual([answer.statusCode, JSON.parse(answer.body)], [200, { width: 4 }]);
});
