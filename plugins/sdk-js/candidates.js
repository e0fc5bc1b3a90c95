// The candidates of a throttler, by column: the first read of a field gets it from the host for all
// candidates. So a field that the author does not read costs nothing.

import * as host from 'tidegate:plugin/candidates@0.2.0';
import { string } from './common.js';

const PLACE = Symbol('place');
const ATTRIBUTES = Symbol('attributes');
const NO_FAILURES = Object.freeze([]);

const COLUMNS = {
  id: () => host.texts('id'),
  jobType: () => host.texts('job-type'),
  priority: () => host.priorities(),
  weight: () => host.numbers('weight'),
  attempt: () => host.numbers('attempt'),
  attempts: () => host.numbers('attempts'),
  createdAt: () => host.instants('created-at'),
  runAt: () => host.instants('run-at'),
  expiresAt: () => host.instants('expires-at'),
  deadlineAt: () => host.instants('deadline-at'),
  targetHost: () => host.texts('target-host'),
  replayOf: () => host.texts('replay-of'),
  correlationKey: () => host.texts('correlation-key'),
};
const FIELDS = [...Object.keys(COLUMNS), 'attributes', 'earlier'];

// The values of attributes, by name.
const valuesOf = new Map();

class Candidate {
  constructor(place) {
    this[PLACE] = place;
  }

  get attributes() {
    return (this[ATTRIBUTES] ??= host.attributes(this[PLACE]));
  }

  // With `needsEarlier`, the host passes records instead.
  get earlier() {
    return NO_FAILURES;
  }

  /** The value of an attribute; undefined if the job has none of that name. */
  attribute(name) {
    let values = valuesOf.get(name);
    if (values === undefined) {
      values = host.attributeValues(string(name, 'name'));
      valuesOf.set(name, values);
    }
    return values[this[PLACE]] ?? undefined;
  }

  /** All fields, for the log. */
  toJSON() {
    return Object.fromEntries(FIELDS.map((name) => [name, this[name]]));
  }
}

for (const [name, read] of Object.entries(COLUMNS)) {
  // An instance lives for one call, so a column is read once.
  let values;
  Object.defineProperty(Candidate.prototype, name, {
    get() {
      return (values ??= read())[this[PLACE]];
    },
  });
}

// Keeps the layout of the objects, as `kept` of common.js does for records.
export const kept = new Candidate(0);

/** The candidates of the call, in their order. */
export function candidates() {
  const count = host.count();
  const jobs = [];
  for (let place = 0; place < count; place++) jobs.push(new Candidate(place));
  return jobs;
}
