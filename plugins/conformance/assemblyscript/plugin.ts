// The conformance plugin: it writes what it receives into its state, and answers as its configuration
// says. `cases` has the configurations and the expected texts.

import {
  Answer, Decision, Description, Dimension, Ended, Failure, Group, Job, Json, LocalTime, Problem,
  Round, Running, State, Throttler, Waiting, WaitingGroup, clock, drop, hold, holdUntil, log, metrics,
  random, reschedule, run,
} from "./sdk/throttler";
import { Attributed } from "./sdk/contract";
import { Call, RetryStrategy, Verdict, giveUp, retryAt } from "./sdk/retry";

// Texts
// -----

function orText(value: string | null): string {
  return value === null ? "-" : value;
}

function orNumber(value: u64): string {
  return value == 0 ? "-" : value.toString();
}

function truth(value: bool): string {
  return value ? "true" : "false";
}

function failureText(failure: Failure): string {
  return [
    failure.attempt.toString(), failure.reason, orText(failure.message),
    orNumber(failure.status), orText(failure.details), failure.startedAt.toString(),
    failure.endedAt.toString(), orNumber(failure.notBefore),
  ].join(",");
}

function jobText(job: Job): string {
  return [
    job.id, job.jobType, job.priority.toString(), job.weight.toString(), job.attempt.toString(),
    job.attempts.toString(), job.createdAt.toString(), job.runAt.toString(),
    orNumber(job.expiresAt), orNumber(job.deadlineAt), orText(job.targetHost),
    orText(job.replayOf), orText(job.correlationKey),
  ].join("|");
}

// The configuration
// -----------------

function attributeOf(config: Json): string {
  const name = config.get("attribute");
  return name.isMissing ? "region" : name.text;
}

function atOf(config: Json): u64 {
  return <u64>config.get("at").integer;
}

function shows(config: Json, what: string): bool {
  const show = config.get("show");
  for (let index = 0; index < show.length; index++) {
    if (show.at(index).text == what) return true;
  }
  return false;
}

function actionOf(config: Json, index: i32): string {
  return config.get("decide").at(index).text;
}

function problemsOf(config: Json): Problem[] {
  const problems: Problem[] = [];
  const at = config.get("at");
  if (!at.isMissing && !at.isWhole) problems.push(new Problem("/at", "must be a whole number"));
  const actions = config.get("decide");
  for (let index = 0; index < actions.length; index++) {
    if (!actions.at(index).isText) {
      problems.push(new Problem(`/decide/${index}`, "must be a string"));
    }
  }
  if (attributeOf(config) == "") {
    problems.push(new Problem("/attribute", "must not be empty"));
  }
  return problems;
}

// What throttlers and retry strategies can use
// --------------------------------------------

function showJob(config: Json, state: State, job: Job): void {
  if (shows(config, "jobs")) state.set(`job ${job.id}`, jobText(job));
  if (shows(config, "attributes")) {
    const pairs: string[] = [];
    for (let index = 0; index < job.attributes.length; index++) {
      pairs.push(`${job.attributes[index].name}=${job.attributes[index].value}`);
    }
    const one = orText(job.attribute(attributeOf(config)));
    const absent = orText(job.attribute("absent"));
    state.set(`attributes ${job.id}`, `${pairs.join(";")}|${one}|${absent}`);
  }
  if (shows(config, "earlier")) {
    const earlier: string[] = [];
    for (let index = 0; index < job.earlier.length; index++) {
      earlier.push(failureText(job.earlier[index]));
    }
    state.set(`earlier ${job.id}`, earlier.join(";"));
  }
  if (shows(config, "data")) state.set(`data ${job.id}`, orText(job.dataText()));
}

function showState(config: Json, state: State): void {
  const kept = orText(state.get("kept"));
  const missing = orText(state.get("missing"));
  const gone = orText(state.get("gone"));
  state.set("state", `${kept}|${missing}|${gone}|${state.keys("k").join(",")}`);
  state.delete("old");
  state.set("new", "ä🚲");
  state.set("soon", "1", atOf(config));
  const key = state.set("k".repeat(129), "v") !== null;
  const value = state.set("k", "v".repeat(16385)) !== null;
  state.set("refused", `${truth(key)}|${truth(value)}`);
}

/** How many long values the state takes, and whether the next one is refused for its bound. */
function showFull(state: State): void {
  const value = "v".repeat(16000);
  let count = 0;
  let why = state.set("full 0", value);
  while (why === null) {
    count++;
    why = state.set(`full ${count}`, value);
  }
  const first = orText(state.get("full 0")).length;
  const last = orText(state.get(`full ${count}`));
  for (let number = 0; number < count; number++) state.delete(`full ${number}`);
  state.set("full", `${count}|${truth(orText(why).includes("256 KiB"))}|${first}|${last}`);
}

function showWrong(config: Json, state: State): void {
  const zone = clock.problem(config.get("zone").text) !== null;
  const at = clock.problem("UTC", atOf(config)) !== null;
  const time = clock.problemOf("UTC", new LocalTime(2026, 1, 1, 24, 0, 0, 0)) !== null;
  state.set("wrong", `${truth(zone)}|${truth(at)}|${truth(time)}`);
}

function showClock(config: Json, state: State): void {
  const zone = config.get("zone").text;
  const shown = clock.local(zone, atOf(config));
  const time = shown.time;
  const date = `${time.year}-${time.month}-${time.day}`;
  const day = `${time.hour}:${time.minute}:${time.second}.${time.millisecond}`;
  const instant = clock.instant(zone, time);
  state.set("clock", `${clock.now()}|${date} ${day}|${shown.weekday}|${shown.offset}|${instant}`);
}

function showCommon(config: Json, state: State, jobs: Job[]): void {
  for (let index = 0; index < jobs.length; index++) showJob(config, state, jobs[index]);
  if (shows(config, "state")) showState(config, state);
  if (shows(config, "full")) showFull(state);
  if (shows(config, "clock")) showClock(config, state);
  if (shows(config, "wrong")) showWrong(config, state);
  if (shows(config, "random")) {
    const first = random.next();
    state.set("random", truth(first != random.next()));
  }
  if (shows(config, "metrics")) {
    metrics.add("conformance_calls", config.get("value").text, 3);
    metrics.set("conformance_level", config.get("value").text, -0.5);
  }
  if (shows(config, "log")) {
    const reason = config.get("reason").text;
    log.debug(reason);
    log.info(reason);
    log.warn(reason);
    log.error(reason);
  }
}

// The throttler
// -------------

function attributeText(config: Json, job: Attributed): string {
  return orText(job.attribute(attributeOf(config)));
}

function showEnded(config: Json, state: State, ended: Ended[]): void {
  for (let index = 0; index < ended.length; index++) {
    const one = ended[index];
    const text = [
      one.id, one.jobType, one.priority.toString(), one.weight.toString(),
      attributeText(config, one), orText(one.targetHost), one.attempt.toString(),
      one.startedAt.toString(), one.endedAt.toString(), truth(one.succeeded), orText(one.reason),
      orText(one.message), orNumber(one.status), orText(one.details), orNumber(one.notBefore),
    ].join("|");
    state.set(`ended ${one.id}`, text);
  }
}

function showRunning(config: Json, state: State, running: Running): void {
  state.set("running", `${running.count()}|${running.weight()}`);
  const jobs = running.page(0, 1000);
  for (let index = 0; index < jobs.length; index++) {
    const job = jobs[index];
    const text = [
      job.id, job.jobType, job.priority.toString(), job.weight.toString(), truth(job.critical),
      attributeText(config, job), job.grantedAt.toString(),
    ].join("|");
    state.set(`running ${job.id}`, text);
  }
  const second = running.page(1, 2);
  const page: string[] = [];
  for (let index = 0; index < second.length; index++) page.push(second[index].id);
  state.set("page", page.join(","));
}

function groupsText(groups: Group[]): string {
  const texts: string[] = [];
  for (let index = 0; index < groups.length; index++) {
    const group = groups[index];
    texts.push(`${group.value}=${group.count},${group.weight}`);
  }
  return texts.join(";");
}

function showGroups(config: Json, state: State, running: Running): void {
  const by = Dimension.attribute(attributeOf(config));
  state.set("by type", groupsText(running.groups(Dimension.jobType)));
  state.set("by priority", groupsText(running.groups(Dimension.priority)));
  state.set("by attribute", groupsText(running.groups(by)));
  const one = running.inGroup(by, config.get("value").text);
  const none = running.inGroup(Dimension.jobType, "none");
  state.set("in group", `${one.count},${one.weight}|${none.count},${none.weight}`);
}

function waitingText(group: WaitingGroup): string {
  return `${group.count},${group.weight},${group.oldestDueAt},${truth(group.atLeast)}`;
}

function showWaiting(config: Json, state: State, waiting: Waiting): void {
  const groups = waiting.groups(attributeOf(config));
  const texts: string[] = [];
  for (let index = 0; index < groups.length; index++) {
    texts.push(`${groups[index].value}=${waitingText(groups[index])}`);
  }
  state.set("waiting", texts.join(";"));
  const others = waiting.others();
  state.set("others", others === null ? "-" : waitingText(others));
  state.set("counted at", orNumber(waiting.countedAt()));
}

function decision(config: Json, action: string): Decision {
  const reason = config.get("reason").text;
  if (action == "hold") return hold(reason);
  if (action == "hold-until") return holdUntil(atOf(config), reason);
  if (action == "reschedule") return reschedule(atOf(config), reason);
  if (action == "drop") return drop(reason);
  return run();
}

export class Throttle extends Throttler {
  describe(): Description {
    const description = new Description("Shows all that a throttler receives.");
    description.stateVersion = 1;
    description.groupBy = ["*"];
    description.needsRunningJobs = true;
    description.needsData = true;
    description.needsEnded = true;
    description.needsEarlier = true;
    description.waitingBy = ["*"];
    return description;
  }

  check(config: Json): Problem[] {
    return problemsOf(config);
  }

  decide(config: Json, round: Round, candidates: Job[]): Answer {
    const state = round.state;
    if (shows(config, "round")) {
      const concurrency = round.concurrency < 0 ? "-" : round.concurrency.toString();
      const room = `${concurrency}|${round.room}|${candidates.length}`;
      state.set("round", `${round.queue}|${round.now}|${room}`);
    }
    showCommon(config, state, candidates);
    if (shows(config, "ended")) showEnded(config, state, round.ended);
    if (shows(config, "running")) showRunning(config, state, round.running);
    if (shows(config, "groups")) showGroups(config, state, round.running);
    if (shows(config, "waiting")) showWaiting(config, state, round.waiting);
    if (actionOf(config, 0) == "error") return Answer.failed(config.get("reason").text);
    const answer = new Answer();
    for (let index = 0; index < candidates.length; index++) {
      answer.decisions.push(decision(config, actionOf(config, index)));
    }
    const more = config.get("more");
    if (!more.isMissing) answer.more = more.bool;
    return answer;
  }
}

// The retry strategy
// ------------------

function planned(config: Json): Verdict {
  const verdict = retryAt(atOf(config));
  const data = config.get("data");
  if (!data.isMissing) verdict.withData(Json.parse(data.text));
  const priority = config.get("priority");
  if (!priority.isMissing) verdict.withPriority(<i32>priority.integer);
  const weight = config.get("weight");
  if (!weight.isMissing) verdict.withWeight(<u32>weight.integer);
  const left = config.get("attempts_left");
  if (!left.isMissing) verdict.withAttemptsLeft(<u32>left.integer);
  const timeout = config.get("timeout");
  if (!timeout.isMissing) verdict.withTimeout(<u64>timeout.integer);
  const target = config.get("target");
  if (!target.isMissing) verdict.withTarget(target.text);
  return verdict;
}

export class Retry extends RetryStrategy {
  describe(): Description {
    const description = new Description("Shows all that a retry strategy receives.");
    description.stateVersion = 1;
    description.needsData = true;
    return description;
  }

  check(config: Json): Problem[] {
    return problemsOf(config);
  }

  onFailure(config: Json, call: Call, job: Job, last: Failure): Verdict {
    const state = call.state;
    if (shows(config, "call")) state.set("call", `${call.queue}|${call.now}`);
    if (shows(config, "last")) state.set("last", failureText(last));
    showCommon(config, state, [job]);
    const action = actionOf(config, 0);
    const reason = config.get("reason").text;
    if (action == "error") return Verdict.failed(reason);
    if (action == "give-up") return giveUp(reason);
    if (action == "give-up-silently") return giveUp();
    return planned(config);
  }
}
