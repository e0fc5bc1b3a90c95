// Settings as a list, to be read.

import { inline, isObject, type JsonObject } from '../lib/diff';
import { span } from '../lib/format';
import { Facts } from '../ui/basics';
import { type Window, windowText } from '../ui/windows';
import { constraintsOf, type Spec } from './specs';

function constraintText(one: JsonObject): string {
  const rate = isObject(one.rate) ? one.rate : null;
  const parts = [
    typeof one.concurrency === 'number' ? `${one.concurrency} at once` : '',
    rate
      ? `${rate.count} per ${span(Number(rate.per_seconds))}${rate.burst ? `, burst ${rate.burst}` : ''}`
      : '',
    one.per ? `for each ${one.per}` : '',
    isObject(one.match) && Object.keys(one.match).length
      ? `where ${JSON.stringify(one.match)}`
      : '',
  ];
  return `${one.name}: ${parts.filter(Boolean).join(' ')}`;
}

function text(spec: Spec, settings: JsonObject): string | null {
  const value = settings[spec.name];
  if (spec.kind === 'constraints')
    return constraintsOf(settings).map(constraintText).join('; ') || null;
  if (value === null || value === undefined || value === false) return null;
  if (spec.kind === 'windows')
    return (value as unknown as Window[]).map(windowText).join('; ') || null;
  if (spec.kind === 'throttler' && isObject(value))
    return `${value.plugin} ${JSON.stringify(value.config ?? {})}`;
  if (isObject(value) && !Object.keys(value).length) return null;
  if (spec.name.endsWith('_seconds')) return span(Number(value));
  return spec.kind === 'flag' ? 'yes' : inline(value);
}

/** The settings that have a value. */
export function ShownSettings({
  settings,
  specs,
}: {
  settings: JsonObject;
  specs: readonly Spec[];
}) {
  const rows = specs.map((spec): [string, string | null] => {
    const label = spec.label.replace(/, seconds| \(JSON\)/, '').toLowerCase();
    if (spec.name === 'concurrency') return [label, text(spec, settings) ?? 'unlimited'];
    return [label, text(spec, settings)];
  });
  return <Facts rows={rows} />;
}
