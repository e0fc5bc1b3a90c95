// Writes the types of the API's schemas, from an OpenAPI document: node types.mjs OPENAPI.JSON FILE
import { readFile, writeFile } from 'node:fs/promises';
import openapiTS, { astToString } from 'openapi-typescript';

const [from, to] = process.argv.slice(2);
if (!from || !to) {
  console.error('usage: node types.mjs OPENAPI.JSON FILE');
  process.exit(2);
}
// Without descriptions: a reworded sentence is no change of a type.
const withoutProse = (name, value) =>
  name === 'description' && typeof value === 'string' ? undefined : value;
const document = JSON.parse(await readFile(from, 'utf8'), withoutProse);
// The console names routes itself; of their 600 KB of types it would use none.
const schemas = { ...document, paths: {}, components: { schemas: document.components.schemas } };
const types = astToString(await openapiTS(schemas, { alphabetize: true }));
await writeFile(to, `// Generated from /openapi.json by types.mjs. Do not edit.\n\n${types}`);
