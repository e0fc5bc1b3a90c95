// Server-sent events, read from pieces of text.

/** One event. */
export interface ServerEvent {
  name: string;
  id: string;
  data: string;
}

/** Reads events from text that arrives in pieces of any size. */
export class EventReader {
  private rest = '';
  private lastId = '';

  /** The events that a further piece completes. */
  push(piece: string): ServerEvent[] {
    const blocks = (this.rest + piece).replace(/\r\n?/g, '\n').split('\n\n');
    this.rest = blocks.pop() ?? '';
    return blocks.map((block) => this.event(block)).filter((event) => event !== null);
  }

  private event(block: string): ServerEvent | null {
    let name = 'message';
    const data: string[] = [];
    for (const line of block.split('\n')) {
      const at = line.indexOf(':');
      if (at === 0) continue;
      const field = at < 0 ? line : line.slice(0, at);
      const value = at < 0 ? '' : line.slice(at + 1).replace(/^ /, '');
      if (field === 'event') name = value;
      else if (field === 'data') data.push(value);
      else if (field === 'id') this.lastId = value;
    }
    return data.length ? { name, id: this.lastId, data: data.join('\n') } : null;
  }
}
