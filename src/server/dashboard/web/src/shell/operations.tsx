// Bulk operations that run in the background, with their progress.

import { signal } from '@preact/signals';
import { useEffect } from 'preact/hooks';
import { get, path } from '../api/client';
import type { Operation } from '../api/types';
import { count } from '../lib/format';

/** An operation on the screen. */
interface Followed {
  operation: Operation;
  title: string;
}

const EVERY_MS = 500;
const followed = signal<Followed[]>([]);

/** Shows the progress of an operation until the user closes it. */
export function followOperation(operation: Operation, title: string): void {
  followed.value = [...followed.value, { operation, title }];
}

/** Waits until an operation has ended. */
export async function finished(operation: Operation): Promise<Operation> {
  let latest = operation;
  while (latest.state === 'running') {
    await new Promise((resolve) => setTimeout(resolve, latest.matched > 1000 ? EVERY_MS : 100));
    latest = await read(latest.id);
  }
  return latest;
}

async function read(id: string): Promise<Operation> {
  return (await get<{ operation: Operation }>(path`v1/operations/${id}`)).operation;
}

/** The operations that were started here. */
export function Operations() {
  const running = followed.value.some(({ operation }) => operation.state === 'running');
  useEffect(() => {
    if (!running) return;
    const timer = setInterval(async () => {
      const next = followed.value.map(async (one) => {
        if (one.operation.state !== 'running') return one;
        const operation = await read(one.operation.id).catch(() => one.operation);
        return { ...one, operation };
      });
      const done = await Promise.all(next);
      followed.value = followed.value.map(
        (one) => done.find(({ operation }) => operation.id === one.operation.id) ?? one,
      );
    }, EVERY_MS);
    return () => clearInterval(timer);
  }, [running]);
  if (!followed.value.length) return null;
  return (
    <aside class="operations" aria-label="Operations">
      {followed.value.map((one) => (
        <Progress key={one.operation.id} one={one} />
      ))}
    </aside>
  );
}

function Progress({ one: { operation, title } }: { one: Followed }) {
  const rest = [
    operation.refused ? `${count(operation.refused)} refused` : '',
    operation.skipped ? `${count(operation.skipped)} skipped` : '',
    operation.error ?? '',
  ].filter(Boolean);
  const running = operation.state === 'running';
  const close = () => {
    followed.value = followed.value.filter((other) => other.operation.id !== operation.id);
  };
  return (
    <div class="operation" role="status">
      <strong>{title}</strong>
      <span>
        {running ? 'runs: ' : `${operation.state}: `}
        {count(operation.done)} of {count(operation.matched)} jobs
        {rest.length > 0 && `, ${rest.join(', ')}`}
      </span>
      {running ? (
        <progress
          aria-label={title}
          max={Math.max(1, operation.matched)}
          value={operation.done + operation.refused}
        />
      ) : (
        <button type="button" class="small" onClick={close}>
          Close
        </button>
      )}
    </div>
  );
}
