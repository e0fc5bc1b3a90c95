// Search over everything: jobs by id or attribute, everything else by a part of its name.

import { useRef, useState } from 'preact/hooks';
import { all, get, optional, path } from '../api/client';
import type { Job } from '../api/types';
import { href, jobHref } from '../lib/route';
import { go } from '../state/router';
import { PAGES } from './shell';

/** Something that the search found. */
interface Hit {
  kind: string;
  name: string;
  to: string;
}

/** How long names are used before they are read again. */
const FRESH_MS = 30_000;
const SHOWN = 12;
const PAUSE_MS = 120;

const LISTS: [string, string, string, (name: string) => string][] = [
  ['queue', 'v1/queues', 'queues', (name) => href(['queues', name])],
  ['type', 'v1/job-types', 'job_types', (name) => href(['types', name])],
  ['schedule', 'v1/schedules', 'schedules', (name) => href(['schedules', name])],
  ['trigger', 'v1/triggers', 'triggers', (name) => href(['triggers', name])],
  ['plugin', 'v1/plugins', 'plugins', (name) => href(['plugins', name])],
  ['worker', 'v1/workers', 'workers', (name) => href(['jobs'], { worker: name })],
];

let known: { at: number; hits: Promise<Hit[]> } | null = null;

/** Every named thing, read at most twice a minute. */
function names(): Promise<Hit[]> {
  if (known && Date.now() - known.at < FRESH_MS) return known.hits;
  const read = LISTS.map(async ([kind, to, list, place]) => {
    const items = await optional(all<{ name: string }>(to, list)).catch(() => null);
    return (items ?? []).map(({ name }): Hit => ({ kind, name, to: place(name) }));
  });
  const hits = Promise.all(read).then((lists) => lists.flat());
  known = { at: Date.now(), hits };
  return hits;
}

async function find(text: string): Promise<Hit[]> {
  const wanted = text.toLowerCase();
  const pages = PAGES.filter((page) => page.title.toLowerCase().startsWith(wanted));
  const [attribute, value] = /^([\w.-]+)=(.+)$/.exec(text)?.slice(1) ?? [];
  const job = /^[\w.:-]{1,64}$/.test(text)
    ? optional(get<Job>(path`v1/jobs/${text}`)).catch(() => null)
    : null;
  const hits: Hit[] = [];
  const found = await job;
  if (found) hits.push({ kind: 'job', name: found.id, to: jobHref(found.type, found.id) });
  if (attribute && value) {
    hits.push({
      kind: 'jobs with',
      name: text,
      to: href(['jobs'], { [`attribute[${attribute}]`]: value }),
    });
  }
  hits.push(...(await names()).filter((hit) => hit.name.toLowerCase().includes(wanted)));
  hits.push(...pages.map((page): Hit => ({ kind: 'page', name: page.title, to: `#/${page.to}` })));
  hits.push({ kind: 'jobs with error', name: text, to: href(['jobs'], { error_contains: text }) });
  return hits.slice(0, SHOWN);
}

/** The search field with its list of hits. */
export function Search() {
  const [text, setText] = useState('');
  const [hits, setHits] = useState<Hit[]>([]);
  const [at, setAt] = useState(0);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const latest = useRef('');
  const field = useRef<HTMLInputElement>(null);

  const search = (value: string) => {
    setText(value);
    latest.current = value.trim();
    clearTimeout(timer.current);
    if (!latest.current) {
      setHits([]);
      return;
    }
    timer.current = setTimeout(async () => {
      const wanted = latest.current;
      const found = await find(wanted);
      if (latest.current !== wanted) return;
      setHits(found);
      setAt(0);
    }, PAUSE_MS);
  };
  const open = (hit: Hit | undefined) => {
    if (!hit) return;
    search('');
    field.current?.blur();
    go(hit.to);
  };
  const enter = async () => {
    if (hits.length) open(hits[at]);
    else if (latest.current) open((await find(latest.current))[0]);
  };
  const press = (event: KeyboardEvent) => {
    if (event.key === 'ArrowDown') setAt((now) => Math.min(hits.length - 1, now + 1));
    else if (event.key === 'ArrowUp') setAt((now) => Math.max(0, now - 1));
    else if (event.key === 'Enter') void enter();
    else if (event.key === 'Escape') {
      search('');
      field.current?.blur();
    } else return;
    event.preventDefault();
  };
  return (
    <search class="search">
      <input
        id="search"
        ref={field}
        type="text"
        role="combobox"
        aria-label="Search"
        aria-expanded={hits.length > 0}
        aria-controls="hits"
        aria-autocomplete="list"
        aria-activedescendant={hits.length ? `hit-${at}` : undefined}
        placeholder="Search  /"
        autoComplete="off"
        spellcheck={false}
        value={text}
        onInput={(event) => search(event.currentTarget.value)}
        onKeyDown={press}
        onBlur={() => setTimeout(() => setHits([]), 150)}
        onFocus={() => search(text)}
      />
      {hits.length > 0 && (
        <div id="hits" role="listbox" aria-label="Hits" class="hits">
          {hits.map((hit, i) => (
            // biome-ignore lint/a11y/useKeyWithClickEvents: the field has the keys
            // biome-ignore lint/a11y/useFocusableInteractive: the field keeps the focus
            <div
              key={hit.kind + hit.name}
              id={`hit-${i}`}
              role="option"
              aria-selected={i === at}
              onClick={() => open(hit)}
            >
              <span class="soft">{hit.kind}</span> {hit.name}
            </div>
          ))}
        </div>
      )}
    </search>
  );
}
