import { describe, expect, it } from 'vitest';
import * as filter from '../src/lib/filter';

const NOW = Date.parse('2026-01-31T08:00:00Z');
const query = (text: string) => new URLSearchParams(text);

describe('instants of a filter', () => {
  it.each([
    ['-24h', '2026-01-30T08:00:00.000Z'],
    ['+10m', '2026-01-31T08:10:00.000Z'],
    ['-1.5d', '2026-01-29T20:00:00.000Z'],
    ['2026-01-31', '2026-01-31T00:00:00.000Z'],
    ['2026-01-31 08:30', '2026-01-31T08:30:00.000Z'],
    ['2026-01-31T08:30:00+02:00', '2026-01-31T06:30:00.000Z'],
    ['yesterday', 'yesterday'],
  ])('%s is %s', (text, instant) => {
    expect(filter.resolve(text, NOW)).toBe(instant);
  });
});

describe('a filter in the address', () => {
  const address = query(
    'phase=failed&attribute[region]=eu&data[/user/id]=7&created_from=-1h&cursor=x&other=1&type=',
  );

  it('has only conditions with a value', () => {
    expect(filter.conditions(address).map(([name]) => name)).toEqual([
      'phase',
      'attribute[region]',
      'data[/user/id]',
      'created_from',
    ]);
  });

  it('becomes the parameters of a list', () => {
    const params = filter.parameters(address, NOW);
    expect(params.get('created_from')).toBe('2026-01-31T07:00:00.000Z');
    expect(params.get('data[/user/id]')).toBe('7');
    expect(params.has('cursor')).toBe(false);
  });

  it('becomes the body of a bulk operation', () => {
    const text =
      'phase=failed,retrying&id=a, b&min_attempt=2&attribute[region]=eu&attribute[x.y]=1&data[/a]=b&error_pattern=a * b';
    expect(filter.body(query(text), NOW)).toEqual({
      phase: ['failed', 'retrying'],
      id: ['a', 'b'],
      min_attempt: 2,
      attribute: { region: 'eu', 'x.y': '1' },
      data: { '/a': 'b' },
      error_pattern: 'a * b',
    });
  });

  it('is shown as chips, each with the filter without it', () => {
    const chips = filter.chips(address);
    expect(chips.map((chip) => chip.text)).toEqual([
      'region: eu',
      'data/user/id: 7',
      'Created from: -1h',
    ]);
    expect(chips[0]?.without.has('attribute[region]')).toBe(false);
    expect(chips[0]?.without.has('data[/user/id]')).toBe(true);
  });

  it('knows whether it is narrower than a queue and a phase', () => {
    expect(filter.narrower(query('queue=a&phase=ready'), ['queue', 'phase'])).toBe(false);
    expect(filter.narrower(query('queue=a&type=b'), ['queue', 'phase'])).toBe(true);
  });
});
