// Entries of the audit log as marks on charts.

import type { AuditEntry } from '../api/types';
import { instant } from './format';

/** A change: the instant in seconds, and what it was. */
export interface Mark {
  x: number;
  text: string;
}

const HOUR_MS = 3_600_000;

/** The changes of what has a path, in the last hour, oldest first. */
export function marksOf(entries: AuditEntry[], path: string, now: number): Mark[] {
  return entries
    .filter((entry) => entry.path === path || entry.path.startsWith(`${path}/`))
    .filter((entry) => entry.status < 400 && now - (instant(entry.at) ?? 0) < HOUR_MS)
    .map((entry) => ({
      x: (instant(entry.at) ?? 0) / 1000,
      text: `${entry.caller}: ${entry.action.replace(/_/g, ' ')}`,
    }))
    .reverse();
}
