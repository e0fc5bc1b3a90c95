// The exports of a throttler. `sdk/names.mjs` gives them their names in the contract.

import { Throttle } from "../../plugin";
import { text } from "../abi";
import { Job, JOB_BYTES, checked, described, readJob } from "../contract";
import { Json } from "../json";
import { Answer, Round, readEnded, writeAnswer } from "../throttler";

export { cabi_realloc } from "../abi";

export function throttleDescribe(): usize {
  return described(new Throttle());
}

export function throttleCheckConfig(config: usize, bytes: usize): usize {
  return checked(new Throttle(), text(config, bytes));
}

export function throttleDecide(
  queue: usize, queueBytes: usize, now: u64, seed: u64, config: usize, configBytes: usize,
  hasConcurrency: i32, concurrency: u32, room: u32, ended: usize, endedCount: i32,
  candidates: usize, candidateCount: i32,
): usize {
  const json = Json.parse(text(config, configBytes));
  if (json.error != "") return writeAnswer(Answer.failed(`configuration: ${json.error}`), 0);
  const round = new Round();
  round.queue = text(queue, queueBytes);
  round.now = now;
  round.seed = seed;
  if (hasConcurrency != 0) round.concurrency = concurrency;
  round.room = room;
  round.ended = readEnded(ended, endedCount);
  const jobs = new Array<Job>(candidateCount);
  for (let index = 0; index < candidateCount; index++) {
    jobs[index] = readJob(candidates + index * JOB_BYTES);
  }
  return writeAnswer(new Throttle().decide(json, round, jobs), candidateCount);
}
