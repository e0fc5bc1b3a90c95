// JSON texts, kept as they were written: numbers that JavaScript would round, and the order of names.

/** The end of the JSON value that begins at `at`, which may be followed by anything. */
function valueEnd(text: string, at: number): number {
  let depth = 0;
  for (let i = at; i < text.length; i++) {
    const c = text[i];
    if (c === '"') {
      i = stringEnd(text, i) - 1;
      if (depth === 0) return i + 1;
    } else if (c === '{' || c === '[') depth++;
    else if (c === '}' || c === ']') {
      if (depth === 0) return i;
      if (--depth === 0) return i + 1;
    } else if (depth === 0 && c === ',') return i;
  }
  return text.length;
}

function stringEnd(text: string, at: number): number {
  for (let i = at + 1; i < text.length; i++) {
    if (text[i] === '\\') i++;
    else if (text[i] === '"') return i + 1;
  }
  return text.length;
}

const blank = (c: string | undefined): boolean =>
  c === ' ' || c === '\n' || c === '\t' || c === '\r';

/** The text of a field of an object, byte for byte; null if the object has no such field. */
export function rawField(object: string, name: string): string | null {
  let i = object.indexOf('{') + 1;
  while (i > 0 && i < object.length) {
    while (blank(object[i]) || object[i] === ',') i++;
    if (object[i] !== '"') return null;
    const end = stringEnd(object, i);
    const key: unknown = JSON.parse(object.slice(i, end));
    i = end;
    while (blank(object[i]) || object[i] === ':') i++;
    const stop = valueEnd(object, i);
    if (key === name) return object.slice(i, stop).trim();
    i = stop;
  }
  return null;
}

/** The same JSON with line breaks and indents. Numbers and texts stay as they are. */
export function pretty(text: string): string {
  let out = '';
  let depth = 0;
  const line = () => `\n${'  '.repeat(depth)}`;
  for (let i = 0; i < text.length; i++) {
    const c = text[i] ?? '';
    if (c === '"') {
      const end = stringEnd(text, i);
      out += text.slice(i, end);
      i = end - 1;
    } else if (c === '{' || c === '[') {
      let next = i + 1;
      while (blank(text[next])) next++;
      if (text[next] === '}' || text[next] === ']') {
        out += c + text[next];
        i = next;
      } else {
        depth++;
        out += c + line();
      }
    } else if (c === '}' || c === ']') {
      depth = Math.max(0, depth - 1);
      out += line() + c;
    } else if (c === ',') out += c + line();
    else if (c === ':') out += ': ';
    else if (!blank(c)) out += c;
  }
  return out;
}

/** The fault of a JSON text, for people; null if there is none. */
export function fault(text: string): string | null {
  try {
    JSON.parse(text);
    return null;
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}

/** An object as JSON, with fields whose texts are put in byte for byte. */
export function withRaw(fields: object, raw: Record<string, string>): string {
  const own = JSON.stringify(fields).slice(1, -1);
  const added = Object.entries(raw).map(([name, text]) => `${JSON.stringify(name)}:${text}`);
  return `{${[own, ...added].filter(Boolean).join(',')}}`;
}
