// The exports of a retry strategy. `sdk/names.mjs` gives them their names in the contract.

import { Retry } from "../../plugin";
import { readText, text } from "../abi";
import { JOB_BYTES, checked, described, readFailure, readJob } from "../contract";
import { Json } from "../json";
import { Call, Verdict } from "../retry";

export { cabi_realloc } from "../abi";

/** The bytes of the first argument of `on-failure`. */
const CONTEXT_BYTES: i32 = 32;

export function retryDescribe(): usize {
  return described(new Retry());
}

export function retryCheckConfig(config: usize, bytes: usize): usize {
  return checked(new Retry(), text(config, bytes));
}

/** The arguments are in memory, because there are more than 16 numbers. */
export function retryOnFailure(at: usize): usize {
  const json = Json.parse(readText(at + 24));
  if (json.error != "") return Verdict.failed(`configuration: ${json.error}`).write();
  const call = new Call(readText(at), load<u64>(at, 8), load<u64>(at, 16));
  const job = readJob(at + CONTEXT_BYTES);
  const last = readFailure(at + CONTEXT_BYTES + JOB_BYTES);
  return new Retry().onFailure(json, call, job, last).write();
}
