import { describe, expect, it } from 'vitest';
import { changes, mergePatch } from '../src/lib/diff';
import * as json from '../src/lib/json';
import { keyed } from '../src/lib/keys';
import { encode, href, parse } from '../src/lib/route';
import { merged, nextSort, sorted } from '../src/lib/rows';
import { EventReader } from '../src/lib/sse';

describe('addresses', () => {
  it('keep any text in a part', () => {
    const name = 'a/b?c#d%20ü <script>\u0000';
    expect(parse(href(['jobs', name]))?.parts).toEqual(['jobs', name]);
  });

  it('are not found when they are malformed', () => {
    expect(parse('#/jobs/email/%E0%A4%A')).toBeNull();
    expect(parse('')?.parts).toEqual([]);
  });

  it('replace half of a surrogate pair', () => {
    expect(encode('a\ud800b')).toBe('a%EF%BF%BDb');
    expect(encode('😀')).toBe('%F0%9F%98%80');
  });

  it('leave out empty parameters', () => {
    expect(href(['jobs'], { queue: 'a', type: undefined, phase: '' })).toBe('#/jobs?queue=a');
  });
});

describe('JSON texts', () => {
  const text =
    '{"id": "a\\"}", "data" : {"n": 12345678901234567890, "f": 1.0, "s": "[,]"}, "result":null}';

  it('give a field byte for byte', () => {
    expect(json.rawField(text, 'data')).toBe('{"n": 12345678901234567890, "f": 1.0, "s": "[,]"}');
    expect(json.rawField(text, 'result')).toBe('null');
    expect(json.rawField(text, 'n')).toBeNull();
    expect(json.rawField('[1]', 'n')).toBeNull();
  });

  it('are indented without a change of their values', () => {
    expect(json.pretty('{"a":[1.0,{}],"b":"x, {y}: \\" z","c":[ ]}')).toBe(
      '{\n  "a": [\n    1.0,\n    {}\n  ],\n  "b": "x, {y}: \\" z",\n  "c": []\n}',
    );
  });

  it('are put into a body as they are', () => {
    expect(json.withRaw({ a: 1 }, { data: '1.0' })).toBe('{"a":1,"data":1.0}');
    expect(json.withRaw({}, { data: 'null' })).toBe('{"data":null}');
    expect(json.withRaw({}, {})).toBe('{}');
  });

  it('have a fault that is named', () => {
    expect(json.fault('{}')).toBeNull();
    expect(json.fault('{a}')).toContain('JSON');
  });
});

describe('changes of settings', () => {
  const before = {
    concurrency: 5,
    order: 'time',
    constraints: [{ name: 'a', concurrency: 1 }],
    retry: { base: 1, max: 2 },
  };

  it('are a merge patch of what differs', () => {
    const after = { concurrency: null, order: 'time', constraints: [], retry: { base: 3, max: 2 } };
    expect(mergePatch(before, after)).toEqual({
      concurrency: null,
      constraints: [],
      retry: { base: 3 },
    });
    expect(mergePatch(before, { ...before })).toEqual({});
  });

  it('are shown leaf by leaf, lists by the names of their items', () => {
    const after = {
      ...before,
      constraints: [
        { name: 'b', concurrency: 2 },
        { name: 'a', concurrency: 3 },
      ],
    };
    expect(changes(before, after).map(({ path }) => path)).toEqual([
      'constraints.a.concurrency',
      'constraints.b',
    ]);
  });
});

describe('rows', () => {
  const rows = [
    { id: 'a', n: 2 },
    { id: 'b', n: null },
    { id: 'c', n: 10 },
  ];

  it('without a value are last in both directions', () => {
    expect(sorted(rows, (row) => row.n, true).map((row) => row.id)).toEqual(['c', 'a', 'b']);
    expect(sorted(rows, (row) => row.n, false).map((row) => row.id)).toEqual(['a', 'c', 'b']);
  });

  it('go back to the order of the server with the third click', () => {
    const first = nextSort(null, 'n');
    const second = nextSort(first, 'n');
    expect([first, second, nextSort(second, 'n')]).toEqual([
      { by: 'n', down: true },
      { by: 'n', down: false },
      null,
    ]);
  });

  it('that are kept stay in their places after a refresh', () => {
    const now = [{ id: 'x' }, { id: 'a' }];
    const kept = merged(
      [{ id: 'a' }, { id: 'b' }, { id: 'c' }],
      now,
      (row) => row.id,
      new Set(['b']),
    );
    expect(kept.map((row) => row.id)).toEqual(['x', 'b', 'a']);
  });
});

describe('server-sent events', () => {
  it('arrive in pieces of any size', () => {
    const text = ': hello\n\nid: 7\nevent: job\ndata: {"a":\ndata: 1}\n\ndata: x\n\n';
    for (const size of [1, 3, 7, text.length]) {
      const reader = new EventReader();
      const events = [];
      for (let i = 0; i < text.length; i += size)
        events.push(...reader.push(text.slice(i, i + size)));
      expect(events).toEqual([
        { name: 'job', id: '7', data: '{"a":\n1}' },
        { name: 'message', id: '7', data: 'x' },
      ]);
    }
  });
});

describe('idempotency keys', () => {
  it('are the same for a repeat, and new for another request', () => {
    const keyOf = keyed();
    const first = keyOf('a');
    expect(first).toMatch(/^[0-9a-f]{32}$/);
    expect(keyOf('a')).toBe(first);
    expect(keyOf('b')).not.toBe(first);
  });
});
