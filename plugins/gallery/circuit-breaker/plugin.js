// A circuit breaker for each target: after so many failures in a row it holds the target's jobs, and
// starts a few of them as probes from time to time. The first success closes it again. The same rule as
// in src/lib.rs.
import { throttler, run, holdUntil, log, metrics, stateKey } from './sdk/throttler.js';

// A target without attempts for this time is forgotten, in milliseconds.
const DAY = 86_400_000;
const CLOSED = { failures: 0, opened_at: null, probe_at: 0 };

export const throttle = throttler({
  about: 'Holds the jobs of a target that fails, and probes it from time to time.',
  stateVersion: 1,
  needsEnded: true,

  decide(config, { now, ended, state }, candidates) {
    const open = Math.max(1, Math.round(config.open_seconds * 1000));
    const attribute = config.attribute ?? null;
    const target = (job) => (attribute === null ? job.targetHost : job.attribute(attribute)) ?? '';
    const circuits = new Map();
    const circuitOf = (name) => {
      const known = circuits.get(name) ?? { ...CLOSED, ...state.load(stateKey('circuit', name)) };
      circuits.set(name, known);
      return known;
    };
    for (const attempt of ended) learn(circuitOf(target(attempt)), attempt, config.failures, now + open);
    const started = new Map();
    const decisions = candidates.map((job) => {
      const name = target(job);
      const circuit = circuitOf(name);
      const probes = started.get(name) ?? 0;
      if (circuit.opened_at === null) return run();
      if ((probes > 0 || circuit.probe_at <= now) && probes < (config.probes ?? 1)) {
        started.set(name, probes + 1);
        circuit.probe_at = now + open;
        return run();
      }
      return holdUntil(circuit.probe_at, `${name} failed ${circuit.failures} times in a row`);
    });
    for (const [name, circuit] of circuits) {
      metrics.set('open', name, circuit.opened_at === null ? 0 : 1);
      const key = stateKey('circuit', name);
      const json = JSON.stringify(circuit);
      if (json === JSON.stringify(CLOSED)) {
        state.delete(key);
      } else if (json !== state.get(key)) {
        try {
          state.set(key, json, Math.max(circuit.probe_at, now) + DAY);
        } catch (problem) {
          log.warn(problem.message);
        }
      }
    }
    return decisions;
  },
});

// Counts an ended attempt. A failed one may open the circuit, until `probeAt`.
function learn(circuit, { startedAt, endedAt, succeeded, reason, status }, failures, probeAt) {
  // What began before the circuit opened is no probe.
  if (circuit.opened_at !== null && startedAt < circuit.opened_at) return;
  // The target answered a request that is wrong, or the attempt was handed back or cancelled. A timeout,
  // "too early" and "too many requests" are failures of the target.
  const isTemporary = [408, 425, 429].includes(status);
  const isAnswer = status >= 400 && status < 500;
  const isHandedBack = [null, undefined, 'released', 'snoozed'].includes(reason);
  if (succeeded || (isAnswer && !isTemporary)) {
    Object.assign(circuit, CLOSED);
  } else if (!isHandedBack) {
    circuit.failures += 1;
    if (circuit.opened_at !== null || circuit.failures >= failures) {
      circuit.opened_at ??= endedAt;
      circuit.probe_at = probeAt;
    }
  }
}
