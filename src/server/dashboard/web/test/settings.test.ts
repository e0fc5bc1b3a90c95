import { describe, expect, it } from 'vitest';
import { mergePatch } from '../src/lib/diff';
import { draftFault, draftOf, QUEUE, settingsOf, TYPE } from '../src/settings/specs';

const queue = {
  concurrency: 5,
  order: 'time',
  order_step_seconds: 60,
  ageing_seconds: null,
  partition_by: null,
  strict_order: false,
  constraints: [{ name: 'pace', match: {}, rate: { count: 10, per_seconds: 1 } }],
  throttler: { plugin: 'shares', config: { a: 1 }, on_failure: 'hold' },
  plugin_calls: { redact: ['data'] },
};

describe('the form of settings', () => {
  it('gives back what it was made of', () => {
    expect(mergePatch(queue, settingsOf(draftOf(queue, QUEUE), QUEUE))).toEqual({});
  });

  it('gives only what differs', () => {
    const draft = draftOf(queue, QUEUE);
    draft.values.concurrency = null;
    draft.texts['constraints[0].match'] = '{"type": "mail"}';
    expect(mergePatch(queue, settingsOf(draft, QUEUE))).toEqual({
      concurrency: null,
      constraints: [{ name: 'pace', match: { type: 'mail' }, rate: { count: 10, per_seconds: 1 } }],
    });
  });

  it('removes a throttler', () => {
    const draft = draftOf(queue, QUEUE);
    draft.values.throttler = null;
    expect(settingsOf(draft, QUEUE).throttler).toBeNull();
  });

  it('names the field whose JSON cannot be read', () => {
    const draft = draftOf({ retry: { strategy: 'exponential' } }, TYPE);
    expect(draftFault(draft)).toBeNull();
    draft.texts.retry = '{';
    expect(draftFault(draft)?.field).toBe('retry');
  });
});
