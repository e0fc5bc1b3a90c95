// What the host gives to every plugin: the log, the clock, random numbers, metrics.

import { RESULT, Utf8, readText } from "./abi";

@external("tidegate:plugin/log@0.2.0", "write")
declare function logWrite(level: i32, message: usize, bytes: usize): void;

@external("tidegate:plugin/clock@0.2.0", "now")
declare function clockNow(): u64;

@external("tidegate:plugin/clock@0.2.0", "local")
declare function clockLocal(zone: usize, bytes: usize, at: u64, result: usize): void;

@external("tidegate:plugin/clock@0.2.0", "instant")
declare function clockInstant(
  zone: usize, bytes: usize, year: i32, month: i32, day: i32, hour: i32, minute: i32, second: i32,
  millisecond: i32, result: usize,
): void;

@external("tidegate:plugin/random@0.2.0", "next")
declare function randomNext(): u64;

@external("tidegate:plugin/metrics@0.2.0", "add")
declare function metricsAdd(
  name: usize, nameBytes: usize, label: usize, labelBytes: usize, amount: f64,
): void;

@external("tidegate:plugin/metrics@0.2.0", "set")
declare function metricsSet(
  name: usize, nameBytes: usize, label: usize, labelBytes: usize, value: f64,
): void;

function line(level: i32, message: string): void {
  const utf8 = new Utf8(message);
  logWrite(level, utf8.start, utf8.length);
}

/**
 * The log, for the plugin's author: `tidegate plugin logs` shows it. The server keeps at most 100
 * lines and 16 KiB of each call, and at most 4 KiB of a line.
 */
export namespace log {
  export function debug(message: string): void {
    line(0, message);
  }
  export function info(message: string): void {
    line(1, message);
  }
  export function warn(message: string): void {
    line(2, message);
  }
  export function error(message: string): void {
    line(3, message);
  }
}

/** A date and a time of day, as a calendar and a clock on a wall show them. */
export class LocalTime {
  constructor(
    public year: i32,
    /** 1 to 12. */
    public month: u8,
    /** 1 to 31. */
    public day: u8,
    public hour: u8 = 0,
    public minute: u8 = 0,
    public second: u8 = 0,
    /** 0 to 999. */
    public millisecond: u16 = 0,
  ) {}
}

/** What a time zone shows at an instant. */
export class Shown {
  constructor(
    public time: LocalTime,
    /** 1 is Monday, 7 is Sunday. */
    public weekday: u8,
    /** How far local time is ahead of UTC, in seconds. */
    public offset: i32,
  ) {}
}

/** Writes the instant at which `zone` shows `time`, or what is wrong with them, at `RESULT`. */
function readInstant(zone: string, time: LocalTime): void {
  const utf8 = new Utf8(zone);
  clockInstant(
    utf8.start, utf8.length, time.year, time.month, time.day, time.hour, time.minute, time.second,
    time.millisecond, RESULT,
  );
}

/**
 * The clock, which does not move during a call, and the time zones of the server. Instants are
 * milliseconds since 1970. A zone is a name of the IANA time zone database, such as
 * `Europe/Berlin`.
 */
export namespace clock {
  /** The time of the decision. 0 while a configuration is checked. */
  export function now(): u64 {
    return clockNow();
  }

  /** Local time in `zone`. A wrong argument ends the call: the log names it. */
  export function local(zone: string, at: u64): Shown {
    const utf8 = new Utf8(zone);
    clockLocal(utf8.start, utf8.length, at, RESULT);
    if (load<u8>(RESULT) != 0) throw new Error(readText(RESULT + 4));
    const time = new LocalTime(
      load<i32>(RESULT, 4), load<u8>(RESULT, 8), load<u8>(RESULT, 9), load<u8>(RESULT, 10),
      load<u8>(RESULT, 11), load<u8>(RESULT, 12), load<u16>(RESULT, 14),
    );
    return new Shown(time, load<u8>(RESULT, 16), load<i32>(RESULT, 20));
  }

  /**
   * The instant at which `zone` shows `time`. If it shows it twice, the first one. If it skips it,
   * the instant of the change. A wrong argument ends the call: the log names it.
   */
  export function instant(zone: string, time: LocalTime): u64 {
    readInstant(zone, time);
    if (load<u8>(RESULT) != 0) throw new Error(readText(RESULT + 8));
    return load<u64>(RESULT, 8);
  }

  /**
   * Why `zone` is not a time zone, or `at` not an instant that it shows, or null if they are. For the
   * check of a configuration.
   */
  export function problem(zone: string, at: u64 = 0): string | null {
    const utf8 = new Utf8(zone);
    clockLocal(utf8.start, utf8.length, at, RESULT);
    return load<u8>(RESULT) == 0 ? null : readText(RESULT + 4);
  }

  /** Why there is no instant at which `zone` shows `time`, or null if there is one. */
  export function problemOf(zone: string, time: LocalTime): string | null {
    readInstant(zone, time);
    return load<u8>(RESULT) == 0 ? null : readText(RESULT + 8);
  }
}

/** Random numbers, which a repetition of the call gets again. Not for secrets. */
export namespace random {
  /** The next number of a sequence that begins with the seed of the call. */
  export function next(): u64 {
    return randomNext();
  }
  /** A number from 0 to `end` - 1; 0 if `end` is 0. */
  export function below(end: u32): u32 {
    return <u32>(((randomNext() >> 32) * <u64>end) >> 32);
  }
}

/**
 * Metrics of the plugin's own, for operators. A name has 1 to 64 bytes of `a-z`, `0-9` and `_`, a
 * label at most 64 bytes. The contract has the other bounds.
 */
export namespace metrics {
  /** Adds to a counter. A negative amount is left out. */
  export function add(name: string, label: string, amount: f64): void {
    const key = new Utf8(name);
    const group = new Utf8(label);
    metricsAdd(key.start, key.length, group.start, group.length, amount);
  }
  /** Sets a gauge. */
  export function set(name: string, label: string, value: f64): void {
    const key = new Utf8(name);
    const group = new Utf8(label);
    metricsSet(key.start, key.length, group.start, group.length, value);
  }
}

/** Ends the call in place of the standard library's `abort`, which `throw` calls. */
export function abort(message: string | null, file: string | null, line: u32, column: u32): void {
  const what = message === null ? "abort" : message;
  const place = file === null ? "" : ` at ${file}:${line}:${column}`;
  log.error(what + place);
  unreachable();
}

/** The seed of `Math.random`. */
export function seed(): f64 {
  return <f64>(randomNext() >> 11);
}
