// Reads and writes the values of the contract in memory, in the form of the component model's
// canonical ABI. An instance lives for one call, so nothing is freed.

/** Where a host function writes a result of more than one number: at most 48 bytes. */
export const RESULT: usize = memory.data(48, 8);

/** The export with which the host gets memory for arguments and results. */
export function cabi_realloc(old: usize, oldBytes: usize, align: usize, bytes: usize): usize {
  // Any aligned address is valid for a value without bytes.
  if (bytes == 0) return align;
  // The allocator aligns to 16 bytes.
  const block = heap.alloc(bytes);
  if (oldBytes > 0) memory.copy(block, old, oldBytes);
  return block;
}

/** Zeroed memory for a value that the host reads. */
export function block(bytes: usize): usize {
  const start = heap.alloc(max<usize>(bytes, 1));
  memory.fill(start, 0, bytes);
  return start;
}

/** The string that the host wrote at an address. */
export function text(start: usize, bytes: usize): string {
  return String.UTF8.decodeUnsafe(start, bytes);
}

/** Reads a string. */
export function readText(at: usize): string {
  return text(load<u32>(at), load<u32>(at, 4));
}

/** Reads an option of a string. */
export function readOptionalText(at: usize): string | null {
  return load<u8>(at) == 0 ? null : readText(at + 4);
}

/** Reads an option of a timestamp: 0 if there is none. */
export function readOptionalTime(at: usize): u64 {
  return load<u8>(at) == 0 ? 0 : load<u64>(at, 8);
}

/** Reads an option of an HTTP status: 0 if there is none. */
export function readOptionalStatus(at: usize): u16 {
  return load<u8>(at) == 0 ? 0 : load<u16>(at, 2);
}

/** A string as UTF-8, as the host reads it. A lone surrogate becomes U+FFFD. */
export class Utf8 {
  private bytes: ArrayBuffer;

  constructor(text: string) {
    this.bytes = String.UTF8.encode(text, false, String.UTF8.ErrorMode.REPLACE);
  }
  get start(): usize {
    return changetype<usize>(this.bytes);
  }
  get length(): usize {
    return this.bytes.byteLength;
  }
}

/** Writes a string. */
export function writeText(at: usize, text: string): void {
  const utf8 = new Utf8(text);
  store<u32>(at, utf8.start);
  store<u32>(at, utf8.length, 4);
}

/** Writes an option of a string. */
export function writeOptionalText(at: usize, text: string | null): void {
  if (text === null) return;
  store<u8>(at, 1);
  writeText(at + 4, text);
}

/** Writes a list of strings. */
export function writeTexts(at: usize, texts: string[]): void {
  const list = block(texts.length * 8);
  for (let index = 0; index < texts.length; index++) writeText(list + index * 8, texts[index]);
  store<u32>(at, list);
  store<u32>(at, texts.length, 4);
}
