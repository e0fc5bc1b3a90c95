// The conformance plugin: it writes what it receives into its state, and answers as its configuration
// says. `cases` has the configurations and the expected texts.

import * as throttling from './sdk/throttler.js';
import * as retrying from './sdk/retry.js';
import type {
  Decision,
  Dimension,
  Ended,
  Failure,
  Group,
  Job,
  LocalTime,
  Problem,
  Running,
  RunningJob,
  Shown,
  State,
  Waiting,
  WaitingGroup,
} from './sdk/throttler.js';
import type { Verdict } from './sdk/retry.js';

interface Config {
  /** What it writes into its state. */
  show: string[];
  /** What it decides: an action for each candidate, or one for a failed job. */
  decide: string[];
  attribute: string;
  value: string;
  reason: string;
  zone: string;
  at: number;
  more?: boolean;
  data?: string;
  priority?: number;
  weight?: number;
  attempts_left?: number;
  timeout?: number;
  target?: string;
}

const { clock, dataOf, log, metrics } = throttling;

const or = (value: string | number | null | undefined): string => (value === null || value === undefined ? '-' : `${value}`);

const failureText = (failure: Failure): string =>
  [
    failure.attempt,
    failure.reason,
    or(failure.message),
    or(failure.status),
    or(failure.details),
    failure.startedAt,
    failure.endedAt,
    or(failure.notBefore),
  ].join(',');

const jobText = (job: Job): string =>
  [
    job.id,
    job.jobType,
    job.priority,
    job.weight,
    job.attempt,
    job.attempts,
    job.createdAt,
    job.runAt,
    or(job.expiresAt),
    or(job.deadlineAt),
    or(job.targetHost),
    or(job.replayOf),
    or(job.correlationKey),
  ].join('|');

// The configuration has not been checked yet.
function check(config: Partial<Config>): Problem[] {
  const problems: Problem[] = [];
  if (config.at !== undefined && !Number.isInteger(config.at)) problems.push({ path: '/at', message: 'must be a whole number' });
  (config.decide ?? []).forEach((action, index) => {
    if (typeof action !== 'string') problems.push({ path: `/decide/${index}`, message: 'must be a string' });
  });
  if (config.attribute === '') problems.push({ path: '/attribute', message: 'must not be empty' });
  return problems;
}

function showJobs(config: Config, state: State, jobs: readonly Job[]): void {
  for (const job of jobs) {
    if (config.show.includes('jobs')) state.set(`job ${job.id}`, jobText(job));
    if (config.show.includes('attributes')) {
      const all = job.attributes.map(({ name, value }) => `${name}=${value}`).join(';');
      state.set(`attributes ${job.id}`, `${all}|${or(job.attribute(config.attribute))}|${or(job.attribute('absent'))}`);
    }
    if (config.show.includes('earlier')) state.set(`earlier ${job.id}`, job.earlier.map(failureText).join(';'));
    if (config.show.includes('data')) {
      const data = dataOf(job);
      state.set(`data ${job.id}`, data === undefined ? '-' : JSON.stringify(data));
    }
  }
}

function refused(state: State, key: string, value: string): boolean {
  try {
    state.set(key, value);
    return false;
  } catch {
    return true;
  }
}

function showState(config: Config, state: State): void {
  const kept = ['kept', 'missing', 'gone'].map((key) => or(state.get(key))).join('|');
  state.set('state', `${kept}|${state.keys('k').join(',')}`);
  state.delete('old');
  state.set('new', 'ä🚲');
  state.set('soon', '1', config.at);
  state.set('refused', `${refused(state, 'k'.repeat(129), 'v')}|${refused(state, 'k', 'v'.repeat(16385))}`);
}

function fails(call: () => unknown): boolean {
  try {
    call();
    return false;
  } catch {
    return true;
  }
}

// How many long values the state takes, and whether the next one is refused for its bound.
function showFull(state: State): void {
  const value = 'v'.repeat(16000);
  let count = 0;
  let why = '';
  while (why === '') {
    try {
      state.set(`full ${count}`, value);
      count += 1;
    } catch (error) {
      why = `${error}`;
    }
  }
  const first = state.get('full 0')?.length;
  const last = or(state.get(`full ${count}`));
  for (let number = 0; number < count; number += 1) state.delete(`full ${number}`);
  state.set('full', `${count}|${why.includes('256 KiB')}|${first}|${last}`);
}

function showWrong(config: Config, state: State): void {
  const zone = fails(() => clock.local(config.zone, 0));
  const at = fails(() => clock.local('UTC', config.at));
  const time = fails(() => clock.instant('UTC', { year: 2026, month: 1, day: 1, hour: 24 }));
  state.set('wrong', `${zone}|${at}|${time}`);
}

function showClock(config: Config, state: State): void {
  const { time, weekday, offset }: Shown = clock.local(config.zone, config.at);
  const date = `${time.year}-${time.month}-${time.day}`;
  const day = `${time.hour}:${time.minute}:${time.second}.${time.millisecond}`;
  state.set('clock', `${clock.now()}|${date} ${day}|${weekday}|${offset}|${clock.instant(config.zone, time satisfies LocalTime)}`);
}

// What throttlers and retry strategies can use.
function showCommon(config: Config, state: State, jobs: readonly Job[]): void {
  showJobs(config, state, jobs);
  if (config.show.includes('state')) showState(config, state);
  if (config.show.includes('full')) showFull(state);
  if (config.show.includes('clock')) showClock(config, state);
  if (config.show.includes('wrong')) showWrong(config, state);
  if (config.show.includes('random')) state.set('random', `${Math.random() !== Math.random()}`);
  if (config.show.includes('metrics')) {
    metrics.add('conformance_calls', config.value, 3);
    metrics.set('conformance_level', config.value, -0.5);
  }
  if (config.show.includes('log')) {
    for (const level of ['debug', 'info', 'warn', 'error'] as const) log[level](config.reason);
  }
}

function showEnded(config: Config, state: State, ended: readonly Ended[]): void {
  for (const one of ended) {
    const fields = [
      one.id,
      one.jobType,
      one.priority,
      one.weight,
      or(one.attribute(config.attribute)),
      or(one.targetHost),
      one.attempt,
      one.startedAt,
      one.endedAt,
      one.succeeded,
      or(one.reason),
      or(one.message),
      or(one.status),
      or(one.details),
      or(one.notBefore),
    ];
    state.set(`ended ${one.id}`, fields.join('|'));
  }
}

function showRunning(config: Config, state: State, running: Running): void {
  state.set('running', `${running.count()}|${running.weight()}`);
  for (const job of running.page(0, 1000)) {
    const fields = [job.id, job.jobType, job.priority, job.weight, job.critical, or(job.attribute(config.attribute)), job.grantedAt];
    state.set(`running ${job.id}`, fields.join('|'));
  }
  const page = running.page(1, 2).map((job: RunningJob) => job.id);
  state.set('page', page.join(','));
}

function showGroups(config: Config, state: State, running: Running): void {
  const by: Dimension = { attribute: config.attribute };
  const text = (groups: Group[]): string => groups.map(({ value, count, weight }) => `${value}=${count},${weight}`).join(';');
  state.set('by type', text(running.groups('job-type')));
  state.set('by priority', text(running.groups('priority')));
  state.set('by attribute', text(running.groups(by)));
  const one = running.inGroup(by, config.value);
  const none = running.inGroup('job-type', 'none');
  state.set('in group', `${one.count},${one.weight}|${none.count},${none.weight}`);
}

function showWaiting(config: Config, state: State, waiting: Waiting): void {
  const text = (group: WaitingGroup): string => `${group.count},${group.weight},${group.oldestDueAt},${group.atLeast}`;
  const groups = waiting.groups(config.attribute).map((group) => `${group.value}=${text(group)}`);
  state.set('waiting', groups.join(';'));
  const others = waiting.others();
  state.set('others', others === null ? '-' : text(others));
  state.set('counted at', or(waiting.countedAt()));
}

function decision(config: Config, action: string): Decision {
  switch (action) {
    case 'hold':
      return throttling.hold(config.reason);
    case 'hold-until':
      return throttling.holdUntil(config.at, config.reason);
    case 'reschedule':
      return throttling.reschedule(config.at, config.reason);
    case 'drop':
      return throttling.drop(config.reason);
    default:
      return throttling.run();
  }
}

const withDefaults = (config: Partial<Config>): Config => ({
  show: [],
  decide: [],
  attribute: 'region',
  value: '',
  reason: '',
  zone: 'UTC',
  at: 0,
  ...config,
});

export const throttle = throttling.throttler<Partial<Config>>({
  about: 'Shows all that a throttler receives.',
  stateVersion: 1,
  groupBy: ['*'],
  needsRunningJobs: true,
  needsData: true,
  needsEnded: true,
  needsEarlier: true,
  waitingBy: ['*'],
  check,

  decide(given, round, candidates) {
    const config = withDefaults(given);
    const { state, running } = round;
    if (config.show.includes('round')) {
      const room = `${or(round.concurrency)}|${round.room}|${candidates.length}`;
      state.set('round', `${round.queue}|${round.now}|${room}`);
    }
    showCommon(config, state, candidates);
    if (config.show.includes('ended')) showEnded(config, state, round.ended);
    if (config.show.includes('running')) showRunning(config, state, running);
    if (config.show.includes('groups')) showGroups(config, state, running);
    if (config.show.includes('waiting')) showWaiting(config, state, round.waiting);
    if (config.decide[0] === 'error') throw new Error(config.reason);
    const decisions = candidates.map((_, index) => decision(config, config.decide[index] ?? 'run'));
    return { decisions, more: config.more ?? true };
  },
});

export const retry = retrying.retryStrategy<Partial<Config>>({
  about: 'Shows all that a retry strategy receives.',
  stateVersion: 1,
  needsData: true,
  check,

  onFailure(given, call, failed, last): Verdict {
    const config = withDefaults(given);
    if (config.show.includes('call')) call.state.set('call', `${call.queue}|${call.now}`);
    if (config.show.includes('last')) call.state.set('last', failureText(last));
    showCommon(config, call.state, [failed]);
    if (config.decide[0] === 'error') throw new Error(config.reason);
    if (config.decide[0] === 'give-up') return retrying.giveUp(config.reason);
    if (config.decide[0] === 'give-up-silently') return retrying.giveUp();
    return retrying.retryAt(config.at, {
      data: config.data === undefined ? undefined : JSON.parse(config.data),
      priority: config.priority,
      weight: config.weight,
      attemptsLeft: config.attempts_left,
      timeout: config.timeout,
      target: config.target,
    });
  },
});
