// Entries of the audit log as marks on charts.

import type { AuditEntry } from '../api/types';
import { instant } from './format';

/** A change: the instant in seconds, and what it was. */
export interface Mark {
  x: number;
  text: string;
}

/** The changes of what has a path, in the last `seconds`, oldest first. */
export function marksOf(entries: AuditEntry[], path: string, now: number, seconds: number): Mark[] {
  return entries
    .filter((entry) => entry.path === path || entry.path.startsWith(`${path}/`))
    .filter((entry) => entry.status < 400 && now - (instant(entry.at) ?? 0) < seconds * 1000)
    .map((entry) => ({
      x: (instant(entry.at) ?? 0) / 1000,
      text: `${entry.caller}: ${entry.action.replace(/_/g, ' ')}`,
    }))
    .reverse();
}
