// The page: which view the address names, and the stream of its states. The views are in views.js.

import { h, refresh } from './dom.js';
import { views } from './views.js';

const main = document.getElementById('main');
const state = document.getElementById('state');
let stream;
let shown;

function open() {
  stream?.close();
  shown = undefined;
  const parts = location.hash.replace(/^#\//, '').split('/').filter(Boolean);
  // The parts stay encoded: a name is one part of the path, whatever it contains.
  stream = new EventSource(['api', ...(parts.length ? parts : ['overview'])].join('/'));
  stream.onmessage = message => show(JSON.parse(message.data));
  stream.onerror = () => say(
    stream.readyState === EventSource.CLOSED
      ? 'this page is not served: too many pages are open (close some and load this one again), or the dashboard has ended (run it again)'
      : 'the dashboard has ended: run inplace dashboard again',
    true,
  );
  trail(parts.map(decodeURIComponent));
}

function say(text, isProblem) {
  // An unchanged text is not announced again.
  if (state.textContent !== text) state.textContent = text;
  state.classList.toggle('problem', isProblem);
}

function show(page) {
  document.body.classList.toggle('one-namespace', page.namespace !== null);
  document.getElementById('scope').textContent = page.namespace === null ? 'all namespaces' : `namespace ${page.namespace}`;
  document.getElementById('problems').replaceChildren(...page.problems.map(problem => h('li', {}, problem)));
  if (page.current) say('live', false);
  else say('the API server is not connected: this is the last known state', true);
  if (!page.view) {
    main.replaceChildren(h('p', { class: 'empty' }, 'There is no such object, or it was deleted.'));
    shown = undefined;
    return;
  }
  if (!shown) {
    shown = views[page.view.kind]();
    main.replaceChildren(shown.root);
    scrollTo(0, 0);
  }
  shown.update(page.view);
}

// Overview, and the object that is shown.
function trail(parts) {
  const name = parts.slice(1).join('/');
  const items = [h('li', {}, h('a', { href: '#/', 'aria-current': parts.length ? null : 'page' }, 'Overview'))];
  if (parts.length) items.push(h('li', {}, h('span', { 'aria-current': 'page' }, `${parts[0]} ${name}`)));
  document.getElementById('path').replaceChildren(...items);
  document.title = parts.length ? `${name} · inplace` : 'inplace';
}

addEventListener('hashchange', () => {
  open();
  main.focus({ preventScroll: true });
});
setInterval(() => {
  refresh();
  shown?.tick?.();
}, 1000);
open();
