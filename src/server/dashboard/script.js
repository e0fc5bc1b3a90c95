'use strict';
// The page calls the API like any client. Everything it shows passes through `node` or textContent,
// so data of a job is never parsed as HTML.

const $ = (id) => document.getElementById(id);
const USES = 12; // Values of constraints per chart, the heaviest first.
const KEEP = 180; // Samples per chart: six minutes at one every two seconds.
const EVERY = 2000;
// A server that keeps the counts of jobs counts them each minute, and pays for what it reads.
const EVERY_KEPT = 30000;
const KEPT = 60000;
const PAGES = 9; // Pages without jobs that a list skips at once.

const node = (name, attributes = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === 'class') made.className = value;
    else if (key === 'click') made.addEventListener('click', value);
    else made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
};

const cell = (content, kind = '') =>
  node('td', { class: kind }, content instanceof Node ? content : String(content ?? '—'));
const time = (text) => (text ? new Date(text).toLocaleString() : '—');
const since = (text) => {
  if (!text) return '—';
  const seconds = Math.max(0, Math.round((Date.now() - new Date(text)) / 1000));
  if (seconds < 120) return `${seconds} s ago`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min ago`;
  return `${Math.round(seconds / 3600)} h ago`;
};
const state = (word) => node('span', { class: `state ${word}` }, word);
const jobHash = (type, id) => `#job/${encodeURIComponent(type)}/${encodeURIComponent(id)}`;
const jobLink = (job) => node('a', { href: jobHash(job.type, job.id) }, job.id);

// Calls of the API.

const ask = async (method, path, body) => {
  const headers = { accept: 'application/json', 'x-requested-with': 'dashboard' };
  const token = sessionStorage.getItem('token');
  if (token) headers.authorization = `Bearer ${token}`;
  if (body !== undefined) headers['content-type'] = 'application/json';
  const json = body === undefined ? undefined : JSON.stringify(body);
  const answer = await fetch(path, { method, headers, body: json });
  const text = await answer.text();
  let value = null;
  try {
    value = text ? JSON.parse(text) : null;
  } catch {
    throw new Error(`${answer.status}: the answer is not JSON`);
  }
  if (answer.ok) return value;
  if (answer.status === 401) $('token').focus();
  throw new Error(
    answer.status === 401
      ? 'This server requires a token with the scope read; enter it above.'
      : (value && value.detail) || answer.statusText);
};

// An error of a button stays until the next action; an error of a refresh until the next success.
const notice = (text, kind) => {
  if (!text && $('notice').dataset.kind !== kind) return;
  $('notice').textContent = text;
  $('notice').dataset.kind = kind;
  $('notice').hidden = !text;
};

// Runs the action of a button, and shows its error if it fails.
const act = async (button, work) => {
  button.disabled = true;
  try {
    await work();
    notice('', 'action');
    await refresh();
  } catch (error) {
    notice(error.message, 'action');
  } finally {
    button.disabled = false;
  }
};

const button = (label, work) => {
  const made = node('button', { type: 'button' }, label);
  made.addEventListener('click', () => act(made, work));
  return made;
};

const pauseButton = (paused, path) => paused
  ? button('Resume', () => ask('POST', `${path}/resume`))
  : button('Pause', () => ask('POST', `${path}/pause`));

// Queues, each with a chart of the samples since the page was opened.

const samples = new Map();

const all = async (path, name) => {
  const items = [];
  let cursor = '';
  do {
    const after = cursor && `&cursor=${encodeURIComponent(cursor)}`;
    const page = await ask('GET', `${path}?limit=1000${after}`);
    items.push(...page[name]);
    cursor = page.next_cursor || '';
  } while (cursor);
  return items;
};

const sample = (queue) => {
  const seen = samples.get(queue.name) || [];
  const depth = (queue.status.depth || {}).scheduled || 0;
  seen.push({
    depth, admitted: queue.status.running_weight, limit: queue.concurrency,
    late: queue.status.lateness_seconds || 0, uses: queue.status.constraints || [],
  });
  if (seen.length > KEEP) seen.shift();
  samples.set(queue.name, seen);
};

const SVG = 'http://www.w3.org/2000/svg';
const svg = (name, attributes) => {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};

const line = (values, top, kind) => {
  const points = values
    .map((value, index) => [KEEP - values.length + index, value])
    .filter(([, value]) => value !== null && value !== undefined)
    .map(([x, value]) => `${x},${(98 - (96 * value) / top).toFixed(1)}`);
  return svg('polyline', { class: kind, points: points.join(' ') });
};

// The admitted weight of a constraint, or of one value of its attribute, and its limit.
const use = ({ name, per, value, running_weight: weight, limit }) => node('div', { class: 'use' },
  node('span', {}, per ? `${per}=${value}` : name),
  node('meter', {
    min: 0, max: Math.max(limit, weight, 1), value: weight, title: name,
    'aria-label': `admitted of ${name}`,
  }),
  node('span', {}, `${weight} of ${limit}`));

const chart = (name) => {
  const seen = samples.get(name);
  const last = seen[seen.length - 1];
  const drawing = svg('svg', {
    viewBox: `0 0 ${KEEP} 100`, preserveAspectRatio: 'none', role: 'img',
    'aria-label': `depth, lateness and admitted weight of ${name}`,
  });
  const deepest = Math.max(1, ...seen.map((one) => one.depth));
  const latest = Math.max(0.1, ...seen.map((one) => one.late));
  const most = Math.max(1, ...seen.map((one) => Math.max(one.admitted, one.limit || 0)));
  drawing.append(
    line(seen.map((one) => one.depth), deepest, 'depth'),
    line(seen.map((one) => one.late), latest, 'late'),
    line(seen.map((one) => one.limit), most, 'limit'),
    line(seen.map((one) => one.admitted), most, 'admitted'),
  );
  const limit = last.limit === null || last.limit === undefined ? 'unlimited' : `of ${last.limit}`;
  const now = `${last.depth} waiting, ${last.admitted} ${limit} admitted`;
  const late = `late by ${last.late.toFixed(2)} s (to ${latest.toFixed(1)})`;
  return node('div', { class: 'chart' },
    node('h2', {}, name, node('small', {}, now)),
    drawing,
    node('div', { class: 'key' },
      node('span', { class: 'depth-key' }, `waiting (to ${deepest})`), ' · ',
      node('span', { class: 'late-key' }, late), ' · ',
      node('span', { class: 'admitted-key' }, `admitted weight (to ${most})`), ' · ',
      node('span', { class: 'limit-key' }, 'limit')),
    ...last.uses.slice(0, USES).map(use));
};

const holderName = ({ kind, name, value }) =>
  kind + (name ? ` ${name}` : '') + (value === undefined ? '' : ` (${value})`);

const queueRow = (queue) => {
  const { status } = queue;
  const phases = status.phases || {};
  const count = (jobs) => `${jobs || 0}${status.depth_at_least ? '+' : ''}`;
  const held = (status.held || []).map((holder) => `${holderName(holder)}: ${holder.jobs}`);
  const path = `/v1/queues/${encodeURIComponent(queue.name)}`;
  const jobs = `#jobs?queue=${encodeURIComponent(queue.name)}`;
  const name = node('span', {}, node('a', { href: jobs }, queue.name),
    queue.paused ? node('span', { class: 'state paused' }, ' paused') : null);
  return node('tr', {},
    cell(name), cell(count(phases.scheduled), 'number'), cell(status.ready, 'number'),
    cell(count(phases.retrying), 'number'),
    cell(`${count(phases.running)} (weight ${status.running_weight})`, 'number'),
    cell(queue.concurrency ?? 'none', 'number'), cell(count(phases.failed), 'number'),
    cell(since(status.oldest_due_at)), cell(held.join(', ') || '—'),
    cell(status.desired_workers, 'number'), cell(pauseButton(queue.paused, path)));
};

// When queues with kept counts were read last; 0 if the server counts at once.
let keptRead = 0;

const showAge = (queues) => {
  const ages = queues.map((queue) => queue.status.counted_at).filter(Boolean).sort();
  $('counted').hidden = !ages.length;
  if (ages.length) $('counted').textContent = `Scheduled, retrying, running and failed jobs were counted ${since(ages[0])}.`;
  keptRead = ages.length ? Date.now() : 0;
};

const showQueues = async (byTimer) => {
  if (byTimer && Date.now() < keptRead + KEPT) return;
  const queues = (await all('/v1/queues', 'queues')).filter((queue) => queue.status);
  showAge(queues);
  queues.forEach(sample);
  const names = new Set(queues.map((queue) => queue.name));
  for (const name of samples.keys()) if (!names.has(name)) samples.delete(name);
  if (view().name !== 'queues') return;
  $('charts').replaceChildren(...queues.slice(0, 24).map((queue) => chart(queue.name)));
  $('queues').replaceChildren(...queues.map(queueRow));
};

// Jobs.

let cursor = '';
let next = '';

const jobRow = (job) => node('tr', {},
  cell(jobLink(job)), cell(job.type), cell(job.queue), cell(state(job.phase)),
  cell(`${job.attempt}/${job.max_attempts}`, 'number'), cell(job.priority, 'number'),
  cell(time(job.created_at)), cell(time(job.ended_at || job.run_at)));

// The submitted filter. Text in the form applies only after it is submitted.
let sought = { id: '', query: new URLSearchParams() };

const readFilter = () => {
  const form = $('filter').elements;
  const query = new URLSearchParams();
  for (const name of ['type', 'queue', 'phase']) {
    if (form[name].value.trim()) query.set(name, form[name].value.trim());
  }
  const [name, ...rest] = form.attribute.value.split('=');
  if (name.trim() && rest.length) query.set(`attribute.${name.trim()}`, rest.join('=').trim());
  sought = { id: form.id.value.trim(), query };
  cursor = '';
};

const showJobs = async () => {
  const query = new URLSearchParams(sought.query);
  query.set('limit', '50');
  if (cursor) query.set('cursor', cursor);
  let page = sought.id
    ? { jobs: [await ask('GET', `/v1/jobs/${encodeURIComponent(sought.id)}`)] }
    : await ask('GET', `/v1/jobs?${query}`);
  // A page without jobs may have a next one.
  for (let more = PAGES; more > 0 && !page.jobs.length && page.next_cursor; more -= 1) {
    query.set('cursor', page.next_cursor);
    page = await ask('GET', `/v1/jobs?${query}`);
  }
  next = page.next_cursor || '';
  $('more').disabled = !next;
  $('first').disabled = !cursor;
  $('jobs').replaceChildren(...page.jobs.map(jobRow));
};

// One job.

const fields = (job) => {
  const list = node('dl');
  const add = (name, value) => {
    if (value === null || value === undefined || value === '') return;
    list.append(
      node('dt', {}, name), node('dd', {}, value instanceof Node ? value : String(value)));
  };
  add('phase', state(job.phase));
  add('type', job.type);
  add('queue', job.queue);
  add('attempt', `${job.attempt} of ${job.max_attempts}`);
  add('priority', job.priority);
  add('weight', job.critical ? `${job.weight}, critical` : job.weight);
  add('created', time(job.created_at));
  const instants = {
    due: job.run_at, started: job.started_at, ended: job.ended_at, expires: job.expires_at,
    deadline: job.deadline_at,
  };
  for (const [name, at] of Object.entries(instants)) if (at) add(name, time(at));
  if (job.running) {
    add('worker', job.running.worker);
    add('lease until', time(job.running.lease_expires_at));
    const { progress } = job.running;
    if (progress) add('progress', `${progress.percent} % ${progress.note || ''}`);
    if (job.running.cancel) add('cancel', 'requested; the worker sees it at its next heartbeat');
  }
  const attributes = Object.entries(job.attributes || {});
  add('attributes', attributes.map(([name, value]) => `${name}=${value}`).join(', '));
  add('correlation key', job.correlation_key);
  if (job.replay_of) add('replay of', jobLink({ type: job.type, id: job.replay_of }));
  if (job.replayed_by) add('replayed by', jobLink({ type: job.type, id: job.replayed_by }));
  add('enqueued by', job.enqueued_by);
  if (job.error) add('error', `${job.error.reason}: ${job.error.message || ''}`);
  return list;
};

const HISTORY = ['Attempt', 'Started', 'Ended', 'Outcome', 'Error', 'Next'];

const history = (entries) => node('table', {},
  node('thead', {}, node('tr', {}, ...HISTORY.map((title) => node('th', {}, title)))),
  node('tbody', {}, ...entries.map((entry) => node('tr', {},
    cell(entry.attempt, 'number'), cell(time(entry.started_at)), cell(time(entry.ended_at)),
    cell(state(entry.outcome)),
    cell(entry.error ? `${entry.error.reason}: ${entry.error.message || ''}` : '—'),
    cell(time(entry.retry_at))))));

// The workers that take jobs of a type: what the server does not know is null.
const workersLine = (workers) => {
  const slots = workers.capacity === null
    ? `${workers.in_use} in use` : `${workers.in_use} of ${workers.capacity} in use`;
  if (workers.known === null) return slots;
  const heard = workers.last_seen_at ? `; last heard ${since(workers.last_seen_at)}` : '';
  return `${slots}; ${workers.known} known, ${workers.polling} polling, ${workers.busy} busy${heard}`;
};

const explained = (why) => {
  const by = why.held_by ? holderName(why.held_by) : 'nothing';
  const earliest = why.earliest_at ? time(why.earliest_at) : 'not known';
  return node('div', { class: 'explain' }, node('strong', {}, `Held by ${by}. `), why.reason || '',
    node('div', { class: 'soft' }, `since ${time(why.since)}; earliest start ${earliest}`),
    why.workers ? node('div', { class: 'soft' }, `workers: ${workersLine(why.workers)}`) : null);
};

const showJob = async (type, id) => {
  const path = `/v1/jobs/${encodeURIComponent(type)}/${encodeURIComponent(id)}`;
  const job = await ask('GET', path);
  const waits = job.state === 'scheduled';
  const ended = !waits && job.state !== 'running';
  const why = waits ? await ask('GET', `${path}/explain`).catch(() => null) : null;
  const actions = node('div', { class: 'actions' });
  if (!ended) {
    actions.append(button('Cancel', () => ask('DELETE', path)));
    if (job.state === 'running') {
      actions.append(button('Cancel at once', () => ask('DELETE', `${path}?force=true`)));
    }
  }
  if (!waits) {
    actions.append(button('Replay', async () => {
      const again = await ask('POST', `${path}/replay`, { again: Boolean(job.replayed_by) });
      location.hash = jobHash(again.type, again.id);
    }));
  }
  const shown = (value) => node('pre', {}, JSON.stringify(value, null, 2));
  if (view().name !== 'job' || view().id !== id) return;
  $('view-job').replaceChildren(
    ...[
      node('h2', {}, `Job ${job.id}`), actions, why ? explained(why) : null,
      node('h2', {}, 'What it is'), fields(job),
      node('h2', {}, 'History'),
      job.history.length
        ? history(job.history)
        : node('p', { class: 'soft' }, 'No attempt has ended yet.'),
      node('h2', {}, 'Data'), shown(job.data),
      job.result === null ? null : node('h2', {}, 'Result'),
      job.result === null ? null : shown(job.result),
    ].filter(Boolean));
};

// Schedules.

const scheduleRow = (schedule) => {
  const path = `/v1/schedules/${encodeURIComponent(schedule.name)}`;
  const rule = schedule.cron
    ? `${schedule.cron} ${schedule.tz || 'UTC'}`
    : `every ${schedule.every_seconds} s`;
  const { last_error: error, last_job: job } = schedule;
  const last = job
    ? node('a', { href: jobHash(schedule.type, job) }, time(schedule.last_occurrence))
    : '—';
  return node('tr', {},
    cell(schedule.name), cell(schedule.type), cell(rule),
    cell(schedule.paused ? state('paused') : time(schedule.next[0])), cell(last),
    cell(schedule.missed_count, 'number'),
    cell(error ? node('span', { class: 'state failed' }, error.message) : '—'),
    cell(node('span', {}, button('Run now', () => ask('POST', `${path}/run`)), ' ',
      pauseButton(schedule.paused, path))));
};

const showSchedules = async () => {
  $('schedules').replaceChildren(...(await all('/v1/schedules', 'schedules')).map(scheduleRow));
};

// Workers.

const showWorkers = async () => {
  const workers = await all('/v1/workers', 'workers');
  $('workers').replaceChildren(...workers.map((worker) => node('tr', {},
    cell(worker.name), cell(worker.running, 'number'), cell(worker.capacity ?? '—', 'number'),
    cell(since(worker.seen_at)), cell(worker.draining ? state('paused') : 'working'))));
};

// Plugins: the live version, the health of its calls, and the differences of its shadow version.

const pluginRow = (plugin, compared) => {
  const { calls, faults, last_fault: last } = plugin.health;
  const about = (plugin.throttler || plugin.retry || {}).about || '';
  const differing = compared && compared.version
    ? `${compared.different} of ${compared.compared}`
    : '—';
  const roles = node('small', { class: 'soft' }, ` ${plugin.roles.join(', ')}`);
  const users = plugin.used_by.map((user) => `${user.kind.replace('_', ' ')} ${user.name}`);
  return node('tr', {},
    cell(node('span', { title: about }, plugin.name, roles)),
    cell(`version ${plugin.live}`), cell(plugin.shadow ? `version ${plugin.shadow}` : '—'),
    cell(users.join(', ') || '—'), cell(calls, 'number'),
    cell(faults ? node('span', { class: 'state failed' }, String(faults)) : 0, 'number'),
    cell(last ? `${last.kind}, version ${last.version}, ${since(last.at)}: ${last.message}` : '—'),
    cell(differing, 'number'));
};

const showPlugins = async () => {
  const plugins = await all('/v1/plugins', 'plugins');
  const compare = (plugin) => {
    if (!plugin.shadow) return null;
    const path = `/v1/plugins/${encodeURIComponent(plugin.name)}/differences`;
    return ask('GET', path).catch(() => null);
  };
  const compared = await Promise.all(plugins.map(compare));
  const rows = plugins.map((plugin, index) => pluginRow(plugin, compared[index]));
  $('plugins').replaceChildren(...rows);
};

// The shown part of the page: #queues, #jobs?type=…, #job/TYPE/ID, #schedules, #workers, #plugins.

const view = () => {
  const [path, query] = location.hash.slice(1).split('?');
  const [name, type, id] = path.split('/').map(decodeURIComponent);
  return { name: name || 'queues', type, id, query: new URLSearchParams(query || '') };
};

const refresh = async (byTimer = false) => {
  const { name, type, id } = view();
  try {
    if (name === 'job') await showJob(type, id);
    else if (name === 'jobs') await showJobs();
    else if (name === 'schedules') await showSchedules();
    else if (name === 'workers') await showWorkers();
    else if (name === 'plugins') await showPlugins();
    await showQueues(byTimer);
    $('health').textContent = 'live';
    $('health').className = 'ok';
    notice('', 'refresh');
  } catch (error) {
    $('health').textContent = 'no answer';
    $('health').className = 'failed';
    notice(error.message, 'refresh');
  }
};

const route = () => {
  const { name, query } = view();
  for (const one of ['queues', 'jobs', 'job', 'schedules', 'workers', 'plugins']) {
    $(`view-${one}`).hidden = one !== name;
  }
  for (const link of document.querySelectorAll('nav a')) {
    const shown = link.hash === `#${name === 'job' ? 'jobs' : name}`;
    if (shown) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  for (const [field, value] of query) {
    if ($('filter').elements[field]) $('filter').elements[field].value = value;
  }
  if (name === 'jobs') readFilter();
  if (name === 'job') $('view-job').replaceChildren();
  refresh();
};

$('login').addEventListener('submit', (event) => {
  event.preventDefault();
  sessionStorage.setItem('token', $('token').value.trim());
  $('token').value = '';
  refresh();
});
$('filter').addEventListener('submit', (event) => {
  event.preventDefault();
  readFilter();
  refresh();
});
$('more').addEventListener('click', () => {
  cursor = next;
  refresh();
});
$('first').addEventListener('click', () => {
  cursor = '';
  refresh();
});
addEventListener('hashchange', route);

// Refreshes never overlap, and stop while the page is hidden.
const live = async () => {
  if (!document.hidden) await refresh(true);
  setTimeout(live, keptRead ? EVERY_KEPT : EVERY);
};
route();
setTimeout(live, EVERY);
