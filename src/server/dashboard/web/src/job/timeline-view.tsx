// The timeline of a job: a bar for each wait and attempt, and what was decided in between.

import type { Explanation, Failure, Job } from '../api/types';
import { count, full, span } from '../lib/format';
import { extent, type Step, timeline } from '../lib/timeline';
import { now } from '../state/live';
import { zone } from '../state/prefs';
import { Badge, Time } from '../ui/basics';
import { Details } from '../ui/code';

/** Steps that are shown before the user wants all. */
const SHOWN = 60;

/** The timeline. */
export function Timeline({ job, why }: { job: Job; why: Explanation | null }) {
  const steps = timeline(job, now.value, why);
  const left = Math.max(0, steps.length - SHOWN);
  const shown = left ? [...steps.slice(0, 3), ...steps.slice(-(SHOWN - 3))] : steps;
  return (
    <>
      {left > 0 && <p class="soft">{count(left)} steps in the middle are left out.</p>}
      <ol class="timeline">
        {shown.map((step, at) => (
          <Row key={at} step={step} steps={steps} />
        ))}
      </ol>
    </>
  );
}

function Row({ step, steps }: { step: Step; steps: Step[] }) {
  const { left, width } = extent(steps, step);
  const seconds = (step.to - step.from) / 1000;
  const at = new Date(step.from).toISOString();
  const point = step.from === step.to;
  return (
    <li class={`step ${step.kind}${step.open ? ' open' : ''}`}>
      <div class="what">
        <strong>{step.label}</strong>
        {!point && <span class="num"> {span(seconds)}</span>}
        {step.open && <span class="soft"> so far</span>}
        {step.detail && (
          <div class="soft">
            <bdi>{step.detail}</bdi>
          </div>
        )}
      </div>
      <div class="lane" title={full(at, zone.value)}>
        <span
          class={point ? 'point' : 'span'}
          style={{ left: `${left * 100}%`, width: point ? '' : `${width * 100}%` }}
        />
      </div>
      <Time at={at} only="absolute" />
      {step.error && (
        <ErrorOf error={step.error} attempt={step.attempt ?? 0} last={lastError(steps) === step} />
      )}
    </li>
  );
}

function lastError(steps: Step[]): Step | undefined {
  return steps.findLast((step) => step.error);
}

/** The error of an attempt with everything that its worker sent: details, stack traces. */
function ErrorOf({ error, attempt, last }: { error: Failure; attempt: number; last: boolean }) {
  const has = error.details !== null && error.details !== undefined;
  return (
    <div class="error-box">
      <Badge word={error.reason} tone="failed" />
      {error.status && <span> HTTP {error.status}</span>} <bdi class="pre">{error.message}</bdi>
      {typeof error.retry_after_seconds === 'number' && (
        <div class="soft">The target asked to wait {span(error.retry_after_seconds)}.</div>
      )}
      {has && (
        <details open={last}>
          <summary>Details of attempt {attempt}</summary>
          <Details value={error.details} label={`details of attempt ${attempt}`} />
        </details>
      )}
    </div>
  );
}
