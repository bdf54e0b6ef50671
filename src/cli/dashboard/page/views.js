// The views: overview, rollout, workload, pod. Each has a root element, and a function that shows a new state in it.

import { ago, duration, h, link, update } from './dom.js';

// The states of a pod or a rollout: a sign beside the colour, and the order of the legend.
const SIGNS = {
  Failed: '✕', AbortFailed: '✕', RolledBack: '↩', Aborted: '↩', Refused: '⊘', Running: '▶', Aborting: '↩', Pending: '…',
  Waiting: '○', Paused: '‖', Cancelled: '–', Superseded: '–', Succeeded: '✓', Idle: '·',
};
const NAMES = { RolledBack: 'Rolled back', AbortFailed: 'Abort failed', Idle: 'No operation' };
// Above this number of pods a cell shows only its sign.
const MANY = 300;

export const views = { overview, rollout, workload, pod };

function named(state) {
  return NAMES[state] ?? state;
}

function badge(state) {
  return h('span', { class: 'badge', 'data-state': state }, h('span', { 'aria-hidden': 'true' }, SIGNS[state] ?? ''), named(state));
}

function section(title, ...children) {
  return h('section', {}, h('h2', {}, title), ...children);
}

function table(...headings) {
  const body = h('tbody');
  const head = h('thead', {}, h('tr', {}, headings.map(heading => h('th', { scope: 'col', class: heading === 'Namespace' ? 'namespace' : null }, heading))));
  return { body, root: h('div', { class: 'scroll' }, h('table', {}, head, body)) };
}

function row(...cells) {
  return h('tr', {}, cells.map(cell => (cell instanceof HTMLTableCellElement ? cell : h('td', {}, cell))));
}

// The column is left out while the dashboard shows one namespace.
function namespaceOf(item) {
  return h('td', { class: 'namespace' }, item.namespace);
}

// Shows `root` if there is something to show, and `otherwise` if not.
function either(root, otherwise, isThere) {
  root.hidden = !isThere;
  otherwise.hidden = isThere;
}

// ---- overview ----

function overview() {
  const rollouts = rolloutTable();
  const workloads = table('Workload', 'Namespace', 'Pods ready', 'State', 'In progress', 'Not successful', 'Longest downtime');
  const noRollouts = h('p', { class: 'empty' }, 'There are no rollouts. ', h('code', {}, 'inplace restart deploy/web'), ' creates one.');
  const noWorkloads = h('p', { class: 'empty' }, 'No pod has a request or a status yet.');
  return {
    root: h('div', {}, h('h1', { class: 'quiet' }, 'Overview'), section('Rollouts', rollouts.root, noRollouts),
      section('Workloads', workloads.root, noWorkloads)),
    update(view) {
      either(rollouts.root, noRollouts, view.rollouts.length > 0);
      either(workloads.root, noWorkloads, view.workloads.length > 0);
      update(rollouts.body, view.rollouts, full, rolloutRow);
      update(workloads.body, view.workloads, full, workloadRow);
    },
  };
}

function full(item) {
  return `${item.namespace}/${item.name}`;
}

function rolloutTable() {
  return table('Phase', 'Rollout', 'Namespace', 'Target', 'Change', 'Progress', 'Downtime', 'Created');
}

function rolloutRow(rollout) {
  const target = rollout.workload
    ? h('a', { href: link('workload', rollout.namespace, ...rollout.workload.split('/')) }, rollout.target)
    : rollout.target;
  return row(badge(rollout.phase), h('a', { href: link('rollout', rollout.namespace, rollout.name) }, rollout.name), namespaceOf(rollout),
    target, h('code', {}, rollout.change), progress(rollout), downtime(rollout.downtime), ago(rollout.createdAt));
}

function downtime(down) {
  return down ? h('span', { class: 'nowrap' }, `${duration(down.median)}, most ${duration(down.most)}`) : '–';
}

function progress(rollout) {
  const total = Math.max(rollout.wanted, 1);
  const part = (state, count) => {
    const bar = h('span', { 'data-state': state });
    bar.style.width = `${(100 * count) / total}%`;
    bar.hidden = count === 0;
    return bar;
  };
  const bars = [part('Succeeded', rollout.done), part('Running', rollout.busy), part('Failed', rollout.failed)];
  const counts = [`${rollout.done} of ${rollout.wanted}`];
  if (rollout.busy) counts.push(`${rollout.busy} busy`);
  if (rollout.failed) counts.push(`${rollout.failed} failed`);
  return h('div', { class: 'progress' }, h('span', { class: 'bar', 'aria-hidden': 'true' }, bars), counts.join(', '));
}

function workloadRow(workload) {
  const game = workload.update;
  const state = game && { Done: 'Succeeded', Going: 'Running', Stopped: 'Failed' }[game.state];
  const failed = workload.failed ? h('strong', { class: 'bad' }, `✕ ${workload.failed}`) : '–';
  return row(h('a', { href: link('workload', workload.namespace, ...workload.name.split('/')) }, workload.name), namespaceOf(workload),
    `${workload.ready} of ${game ? game.desired : workload.pods}`,
    game ? h('span', { class: 'said', title: game.message }, badgeOf(state, game.message)) : '–',
    workload.running || '–', failed, workload.longestDowntimeMs === null ? '–' : duration(workload.longestDowntimeMs));
}

function badgeOf(state, text) {
  return [h('span', { class: 'badge', 'data-state': state, 'aria-hidden': 'true' }, SIGNS[state]), text];
}

// ---- pods as cells ----

// A cell for each pod, below its zone and node; the legend counts the states, and shows only one of them when it is pressed.
function cells() {
  const legend = h('div', { class: 'legend', role: 'group', 'aria-label': 'Show only' });
  const detail = h('p', { class: 'detail' });
  const zones = h('div', { class: 'zones' });
  let only = null;
  const all = () => [...zones.querySelectorAll('.cell')];
  const filter = () => {
    for (const cell of all()) cell.hidden = only !== null && cell.dataset.state !== only;
    for (const button of legend.children) button.setAttribute('aria-pressed', button.dataset.state === only);
  };
  const describe = event => {
    const cell = event.target.closest?.('.cell');
    if (cell) detail.textContent = cell.getAttribute('aria-label');
  };
  zones.addEventListener('mouseover', describe);
  zones.addEventListener('focusin', describe);
  zones.addEventListener('keydown', event => move(event, all().filter(cell => !cell.hidden)));
  return {
    root: section('Pods', legend, detail, zones),
    update(groups) {
      const list = groups.flatMap(zone => zone.nodes.flatMap(node => node.cells));
      zones.classList.toggle('many', list.length > MANY);
      const counts = Object.keys(SIGNS).map(state => ({ state, count: list.filter(cell => cell.state === state).length }));
      const found = counts.filter(({ count }) => count > 0);
      if (only && !found.some(({ state }) => state === only)) only = null;
      update(legend, found, item => item.state, ({ state, count }) => h('button', { type: 'button', 'data-state': state, click: () => {
        only = only === state ? null : state;
        filter();
      } }, h('span', { 'aria-hidden': 'true' }, SIGNS[state]), `${named(state)} `, h('b', {}, count)));
      if (!detail.textContent) detail.textContent = list.length ? 'Point at a pod, or move with the arrow keys.' : 'There are no pods.';
      updateZones(zones, groups);
      filter();
      const cells = all();
      if (cells.length && !cells.some(cell => cell.tabIndex === 0)) cells[0].tabIndex = 0;
    },
  };
}

// The elements of zones and nodes stay when their cells change.
function updateZones(root, zones) {
  update(root, zones.map(zone => ({ name: zone.name })), zone => zone.name ?? '', zone =>
    h('section', { class: 'zone' }, h('h3', {}, zone.name === null ? 'no zone' : `zone ${zone.name}`), h('div', { class: 'nodes' })));
  zones.forEach((zone, at) => {
    const element = root.children[at];
    // Without any zone, the heading says nothing.
    element.querySelector('h3').hidden = zones.length === 1 && zone.name === null;
    const nodes = element.querySelector('.nodes');
    update(nodes, zone.nodes.map(({ name, ready }) => ({ name, ready })), node => node.name ?? '', node =>
      h('section', { class: 'node' }, h('h4', {}, node.name ?? 'not scheduled', node.ready === false && h('b', { class: 'bad' }, ' not Ready')),
        h('div', { class: 'cells' })));
    zone.nodes.forEach((node, index) => update(nodes.children[index].querySelector('.cells'), node.cells, cell => cell.name, cellOf));
  });
}

function cellOf(cell) {
  const parts = [cell.name, named(cell.state)];
  if (cell.step) parts.push(cell.step);
  if (cell.downtimeMs !== null) parts.push(`down ${duration(cell.downtimeMs)}`);
  if (!cell.ready) parts.push('not Ready');
  if (cell.deleting) parts.push('being deleted');
  if (cell.outdated) parts.push('not at the newest revision');
  if (cell.message) parts.push(cell.message);
  const short = cell.name.slice(cell.name.lastIndexOf('-') + 1);
  const figure = cell.step ?? (cell.downtimeMs !== null ? duration(cell.downtimeMs) : cell.outdated ? 'old' : '');
  return h('a', {
    class: 'cell', 'data-state': cell.state, 'data-unready': !cell.ready, 'data-outdated': cell.outdated, tabindex: '-1',
    href: link('pod', cell.namespace, cell.name), title: parts.join(' · '), 'aria-label': parts.join(', '),
  }, h('span', { class: 'short' }, short, !cell.ready && h('b', {}, '!')), h('span', { class: 'figure' }, h('i', {}, SIGNS[cell.state]), h('span', {}, figure)));
}

// Moves the focus with the arrow keys: a grid of pods is one stop of the tab key.
function move(event, list) {
  const at = list.indexOf(document.activeElement);
  if (at < 0) return;
  const here = list[at].getBoundingClientRect();
  const nearest = candidates => {
    const distance = cell => {
      const there = cell.getBoundingClientRect();
      return Math.abs(there.top - here.top) * 10 + Math.abs(there.left - here.left);
    };
    return candidates.reduce((best, cell) => (best === undefined || distance(cell) < distance(best) ? cell : best), undefined);
  };
  const next = {
    ArrowRight: () => list[at + 1],
    ArrowLeft: () => list[at - 1],
    ArrowDown: () => nearest(list.slice(at).filter(cell => cell.getBoundingClientRect().top > here.top)),
    ArrowUp: () => nearest(list.slice(0, at).filter(cell => cell.getBoundingClientRect().top < here.top)),
    Home: () => list[0],
    End: () => list[list.length - 1],
  }[event.key]?.();
  if (!next) return;
  event.preventDefault();
  list[at].tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

// ---- one rollout, one workload ----

function rollout() {
  const head = h('div');
  const pods = cells();
  const failures = table('Pod', 'Reason', 'Message', 'When');
  const failed = section('Failures', failures.root);
  const history = events();
  return {
    root: h('div', {}, head, pods.root, failed, history.root),
    update(view) {
      update(head, [view.row], full, ({ ...row }) => rolloutHead(row));
      pods.update(view.zones);
      failed.hidden = view.failures.length === 0;
      update(failures.body, view.failures, failure => failure.uid, failure =>
        row(h('a', { href: link('pod', view.row.namespace, failure.pod) }, failure.pod), failure.reason, failure.message, ago(failure.at)));
      history.update(view.events);
    },
  };
}

function rolloutHead(rollout) {
  return h('div', { class: 'head' }, h('h1', {}, rollout.name, badge(rollout.phase)), h('p', {}, rollout.message), facts({
    Target: rollout.workload
      ? h('a', { href: link('workload', rollout.namespace, ...rollout.workload.split('/')) }, rollout.target)
      : rollout.target,
    Change: h('code', {}, rollout.change),
    Strategy: rollout.together ? 'Together' : 'Rolling',
    Progress: progress(rollout),
    Downtime: downtime(rollout.downtime),
    Created: ago(rollout.createdAt),
    Ended: rollout.finishedAt && ago(rollout.finishedAt),
  }));
}

function workload() {
  const head = h('div');
  const pods = cells();
  const rollouts = rolloutTable();
  const noRollouts = h('p', { class: 'empty' }, 'No rollout of this workload exists.');
  const revisions = table('Revision', 'Name', 'Images', 'Change cause', 'Created');
  const past = section('Revisions', revisions.root);
  const history = events();
  return {
    root: h('div', {}, head, pods.root, section('Rollouts', rollouts.root, noRollouts), past, history.root),
    update(view) {
      update(head, [view.row], full, ({ ...row }) => workloadHead(row));
      pods.update(view.zones);
      either(rollouts.root, noRollouts, view.rollouts.length > 0);
      update(rollouts.body, view.rollouts, full, rolloutRow);
      past.hidden = view.revisions.length === 0;
      update(revisions.body, view.revisions, revision => revision.name, revision =>
        row([String(revision.number), revision.current && h('b', {}, ' (now)')], revision.name, h('code', {}, revision.images), revision.cause ?? '–',
          ago(revision.createdAt)));
      history.update(view.events);
    },
  };
}

function workloadHead(workload) {
  const game = workload.update;
  return h('div', { class: 'head' }, h('h1', {}, workload.name), game && h('p', {}, game.message), facts({
    'Pods ready': `${workload.ready} of ${game ? game.desired : workload.pods}`,
    'At the newest revision': game && `${game.updated} of ${game.desired}`,
    Images: game && h('code', {}, game.images),
    'Longest downtime': workload.longestDowntimeMs === null ? null : duration(workload.longestDowntimeMs),
  }));
}

function facts(entries) {
  const shown = Object.entries(entries).filter(([, value]) => value !== null && value !== undefined && value !== '');
  return h('dl', { class: 'facts' }, shown.map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value))));
}

function events() {
  const list = table('When', 'Reason', 'Message');
  const root = section('Events', list.root);
  return {
    root,
    update(all) {
      root.hidden = all.length === 0;
      update(list.body, all, event => `${event.at} ${event.about} ${event.reason} ${event.message}`, event =>
        row(ago(event.at), h('span', { class: event.warning ? 'bad' : null }, event.warning && '✕ ', event.reason), event.message));
    },
  };
}

// ---- one pod ----

function pod() {
  const head = h('div');
  const operations = h('div', { class: 'operations' });
  const none = h('p', { class: 'empty' }, 'No operation on this pod is known.');
  const history = events();
  return {
    root: h('div', {}, head, section('Operations', operations, none), history.root),
    update(view) {
      const { operations: list, events: log, ...rest } = view;
      update(head, [rest], full, podHead);
      either(operations, none, list.length > 0);
      update(operations, list, operation => operation.id, operationOf);
      history.update(log);
    },
    tick() {
      for (const line of operations.querySelectorAll('.open')) draw(line);
    },
  };
}

function podHead(pod) {
  return h('div', { class: 'head' }, h('h1', {}, pod.name), pod.unanswered && h('p', {}, `request ${pod.unanswered} has no status yet`), facts({
    Workload: pod.workload.startsWith('pod/') ? null : h('a', { href: link('workload', pod.namespace, ...pod.workload.split('/')) }, pod.workload),
    Node: pod.node ?? 'not scheduled',
    Zone: pod.zone,
    Phase: pod.deleting ? `${pod.phase}, being deleted` : `${pod.phase}, ${pod.ready ? 'Ready' : 'not Ready'}`,
    Restarts: String(pod.restarts),
    Revision: pod.revision,
    Images: h('code', {}, pod.containers.map(([name, image]) => `${name}=${image}`).join(', ')),
    Created: ago(pod.createdAt),
  }));
}

function operationOf(operation) {
  const down = operation.containers.map(container => container.downtimeMs).filter(ms => ms !== null);
  const article = h('article', { class: 'operation' },
    h('h3', {}, badge(operation.phase), h('span', {}, operation.containers.map(container => `${container.action.toLowerCase()} ${container.name}`).join(', ')),
      down.length > 0 && h('strong', {}, `down ${duration(Math.max(...down))}`)),
    h('p', {}, [operation.reason, operation.message].filter(Boolean).join(': ')),
    h('p', { class: 'quiet' }, `request ${operation.id}, started `, ago(operation.startedAt)));
  if (!operation.startedAt) return article;
  const lines = operation.containers.map(container => [container.name, container.spans, `${container.engine}, attempt ${container.attempts[0]}` +
    (container.attempts[1] === null ? '' : ` → ${container.attempts[1]}`)]);
  if (operation.steps.length) lines.unshift(['steps', operation.steps, '']);
  const timeline = h('div', { class: operation.finishedAt ? 'timeline' : 'timeline open' }, lines.map(([name, spans, remark]) => timelineLine(name, spans, remark)));
  timeline.begin = Date.parse(operation.startedAt);
  timeline.end = operation.finishedAt && Date.parse(operation.finishedAt);
  draw(timeline);
  article.append(timeline);
  return article;
}

const SPANS = { before: 'runs', down: 'down', starting: 'until Ready', after: 'Ready' };

function timelineLine(name, spans, remark) {
  const label = span => SPANS[span.name] ?? span.name;
  const bar = span => Object.assign(h('span', { class: 'span', 'data-span': span.name }), { span, label: label(span) });
  const item = span => Object.assign(h('li'), { span, label: label(span) });
  return h('div', { class: 'line' }, h('b', {}, name), h('div', { class: 'track', 'aria-hidden': 'true' }, spans.map(bar)), h('ol', {}, spans.map(item)),
    remark && h('span', { class: 'quiet' }, remark));
}

// A bar that is narrower than this percentage has no text.
const NARROW = 7;

// Sets the places of the bars and the texts of the durations; again while the operation lasts.
function draw(timeline) {
  const total = Math.max((timeline.end ?? Date.now()) - timeline.begin, 1);
  const percent = ms => Math.min(Math.max((100 * ms) / total, 0), 100);
  const length = ({ fromMs, toMs }) => (toMs ?? Math.max(total, fromMs)) - fromMs;
  for (const item of timeline.querySelectorAll('li')) {
    item.textContent = `${item.label} ${duration(length(item.span))}${item.span.toMs === null ? ' so far' : ''}`;
  }
  for (const bar of timeline.querySelectorAll('.span')) {
    const width = percent(length(bar.span));
    bar.style.left = `${percent(bar.span.fromMs)}%`;
    bar.style.width = `${width}%`;
    bar.textContent = width < NARROW ? '' : bar.label;
  }
}
