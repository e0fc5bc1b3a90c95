import { describe, expect, it } from 'vitest';
import * as format from '../src/lib/format';

const NOW = Date.parse('2026-01-31T08:00:00Z');

describe('spans', () => {
  it.each([
    [0, '0 s'],
    [0.0001, '< 1 ms'],
    [0.012, '12 ms'],
    [0.9996, '1 s'],
    [3.44, '3.4 s'],
    [9.97, '10 s'],
    [45.4, '45 s'],
    [310, '5 min 10 s'],
    [3600, '1 h'],
    [11_040, '3 h 4 min'],
    [176_400, '2 d 1 h'],
    [86_400 * 400, '400 d'],
    [-310, '-5 min 10 s'],
  ])('%s seconds are %s', (seconds, text) => {
    expect(format.span(seconds)).toBe(text);
  });

  it('shows a dash where there is no span', () => {
    expect([
      format.span(null),
      format.span(undefined),
      format.span(Number.POSITIVE_INFINITY),
    ]).toEqual(['–', '–', '–']);
  });
});

describe('instants', () => {
  it('are relative to now in both directions', () => {
    expect(format.relative('2026-01-31T07:59:57Z', NOW)).toBe('3 s ago');
    expect(format.relative('2026-01-31T08:10:00Z', NOW)).toBe('in 10 min');
    expect(format.relative('2026-01-31T08:00:01Z', NOW)).toBe('now');
    expect(format.relative('2026-01-28T08:00:00Z', NOW)).toBe('3 d ago');
    expect(format.relative('nonsense', NOW)).toBe('–');
  });

  it('have an age, which is never negative', () => {
    expect(format.age('2026-01-31T07:46:00Z', NOW)).toBe('14 min');
    expect(format.age('2026-01-31T08:00:05Z', NOW)).toBe('0 s');
    expect(format.age(null, NOW)).toBe('–');
  });

  it('have a zone when they are shown in full', () => {
    expect(format.full('2026-01-31T08:00:00.123Z', 'utc')).toBe('2026-01-31 08:00:00.123 UTC');
    expect(format.full('2026-01-31T08:00:00.123Z', 'local')).toMatch(
      /^2026-0\d-\d\d \d\d:\d\d:00\.123 [+-]\d\d:\d\d$/,
    );
  });

  it('leave out the date of today and the year of this year', () => {
    expect(format.short('2026-01-31T07:00:00Z', 'utc', NOW)).toBe('07:00:00');
    expect(format.short('2026-01-30T07:00:00Z', 'utc', NOW)).toBe('01-30 07:00:00');
    expect(format.short('2025-01-30T07:00:00Z', 'utc', NOW)).toBe('2025-01-30 07:00:00');
  });
});

describe('numbers', () => {
  it('are grouped by threes', () => {
    expect(format.count(1234567)).toBe('1\u202f234\u202f567');
    expect(format.count(12.3456)).toBe('12.346');
    expect(format.count(null)).toBe('–');
    expect(format.plural(1, 'job')).toBe('1 job');
    expect(format.plural(2, 'job')).toBe('2 jobs');
  });

  it('are rates with a unit that suits them', () => {
    expect([1234, 12.34, 0.5, 0.001, 0].map(format.rate)).toEqual([
      '1\u202f234/s',
      '12.3/s',
      '30/min',
      '3.6/h',
      '0/s',
    ]);
  });

  it('are short from ten thousand on, where there is little room', () => {
    expect([0, 9999, 12_345, 123_456, 999_499, 999_500, 12_345_678].map(format.compact)).toEqual([
      '0',
      '9\u202f999',
      '12.3 k',
      '123 k',
      '999 k',
      '1 M',
      '12.3 M',
    ]);
  });

  it('are two rates in the unit of the larger one', () => {
    expect(format.rates(12.34, 0.5)).toBe('12.3 · 0.5/s');
    expect(format.rates(0.3, 0.06)).toBe('18 · 3.6/min');
    expect(format.rates(null, 0.001)).toBe('– · 3.6/h');
    expect(format.rates(12_345.6, 0)).toBe('12.3 k · 0/s');
    expect(format.rates(0, 0)).toBe('0 · 0/s');
  });

  it('are shares and sizes', () => {
    expect([0, 0.004, 0.5, null].map(format.percent)).toEqual(['0 %', '0.4 %', '50 %', '–']);
    expect([512, 1536, 3 << 20].map(format.bytes)).toEqual(['512 B', '1.5 KiB', '3 MiB']);
  });

  it('names what holds a job', () => {
    expect(format.holder({ kind: 'due_time' })).toBe('due time');
    expect(format.holder({ kind: 'constraint', name: 'per-tenant', value: 'acme' })).toBe(
      'constraint per-tenant (acme)',
    );
  });
});
