// Builds and updates elements. Every text is inserted as text, never as markup: names and messages come from the cluster.

// An element. Properties: `class`, `data-*`, `aria-*` and other attributes; functions are listeners; null is left out.
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === 'function') element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat().filter(child => child !== null && child !== undefined && child !== false));
  return element;
}

// Makes the children of `parent` those of `items`, in their order. A child is kept while its item is the same, and built again
// when it differs. The focus stays on the child that had it.
export function update(parent, items, key, build) {
  const before = parent.known ?? new Map();
  const known = new Map();
  let place = parent.firstChild;
  for (const item of items) {
    const name = key(item);
    const text = JSON.stringify(item);
    let entry = before.get(name);
    if (!entry || entry.text !== text) {
      const element = build(item);
      if (entry) replace(entry.element, element);
      if (entry && entry.element === place) place = element;
      entry = { text, element };
    }
    before.delete(name);
    known.set(name, entry);
    if (entry.element === place) place = place.nextSibling;
    else parent.insertBefore(entry.element, place);
  }
  for (const { element } of before.values()) element.remove();
  parent.known = known;
}

function replace(old, element) {
  const hadFocus = old.contains(document.activeElement);
  if (old.tabIndex === 0 && element.tabIndex === -1) element.tabIndex = 0;
  old.replaceWith(element);
  if (hadFocus) (element.matches('a, button') ? element : element.querySelector('a, button'))?.focus({ preventScroll: true });
}

// A path of the page: its parts may contain any character.
export function link(...parts) {
  return '#/' + parts.map(encodeURIComponent).join('/');
}

// `76 ms`, `1.3 s`, `2 min 5 s`.
export function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.floor(ms / 60000)} min ${Math.floor(ms / 1000) % 60} s`;
}

// The time since `at`, in one unit; `refresh` keeps it up to date.
export function ago(at) {
  return at ? h('time', { datetime: at, title: new Date(at).toLocaleString() }, age(at)) : '–';
}

export function refresh() {
  for (const time of document.querySelectorAll('time')) time.textContent = age(time.dateTime);
}

function age(at) {
  const seconds = Math.max(0, Math.floor((Date.now() - Date.parse(at)) / 1000));
  if (seconds < 120) return `${seconds} s ago`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}
