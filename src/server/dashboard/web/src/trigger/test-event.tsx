// What a trigger would do about an event, without doing it.

import { useState } from 'preact/hooks';
import { ApiError, message, path, send } from '../api/client';
import type { TriggerTrial } from '../api/types';
import { fault } from '../lib/json';
import { Button } from '../ui/basics';
import { JsonValue } from '../ui/code';
import { AreaField } from '../ui/fields';

const EXAMPLE = JSON.stringify(
  {
    specversion: '1.0',
    id: 'test-1',
    source: '/console',
    type: 'com.example.order.paid',
    data: { id: 7 },
  },
  null,
  2,
);

/** What each answer means. */
const WORDS: Record<string, string> = {
  enqueued: 'It would enqueue this job.',
  completed: 'It would complete this job.',
  unmatched: 'The trigger does not match.',
  dead_lettered: 'It would become a dead letter.',
};

/** The form, and the answer below it. */
export function TestEvent({ trigger }: { trigger: string }) {
  const [text, setText] = useState(EXAMPLE);
  const [outcome, setOutcome] = useState<TriggerTrial | null>(null);
  const [wrong, setWrong] = useState('');
  const problem = fault(text) ?? undefined;
  const test = async () => {
    setWrong('');
    setOutcome(null);
    try {
      const options = { raw: text, mediaType: 'application/cloudevents+json' };
      setOutcome(
        (await send<TriggerTrial>('POST', path`v1/triggers/${trigger}/test`, options)).value,
      );
    } catch (error) {
      const old =
        error instanceof ApiError &&
        (error.code === '' || error.kind === 'unsupported') &&
        error.status !== 400;
      setWrong(old ? 'This server does not test events.' : message(error));
    }
  };
  return (
    <>
      <AreaField
        label="CloudEvent (JSON)"
        rows={9}
        value={text}
        error={problem}
        onInput={setText}
      />
      <Button kind="primary" onClick={test} disabled={Boolean(problem)}>
        Test, without doing it
      </Button>
      {wrong && (
        <p class="failure" role="alert">
          {wrong}
        </p>
      )}
      {outcome && (
        <div role="status">
          <p>
            <strong>{WORDS[outcome.action] ?? outcome.action}</strong>{' '}
            {outcome.reason && <bdi class="failure">{outcome.reason}</bdi>}
          </p>
          {outcome.job !== undefined && outcome.job !== null && (
            <JsonValue value={outcome.job} label="job" />
          )}
        </div>
      )}
    </>
  );
}
