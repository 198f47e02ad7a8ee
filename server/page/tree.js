// The states that the server keeps, as a tree: what was forked, or went on from what.
import {ask} from './api.js';

const list = document.getElementById('tree');
const note = document.getElementById('tree-note');
const size = document.getElementById('tree-size');
let actions = {};
let known = new Set();

// `label(state)` is what the page calls a state, or ''; `open(state)` shows it;
// `goOn(state)` generates from its end; `onGone(ids)`: these are no more.
export function setTreeActions(all) {
  actions = all;
}

function button(text, label, act) {
  const element = document.createElement('button');
  element.type = 'button';
  element.className = 'small';
  element.textContent = text;
  element.setAttribute('aria-label', label);
  element.addEventListener('click', act);
  return element;
}

async function change(path, options) {
  try {
    await ask(path, options);
  } catch (error) {
    note.textContent = error.message;
    return;
  }
  await refreshTree();
}

function node(state, children) {
  const item = document.createElement('li');
  const row = document.createElement('div');
  row.className = 'node';
  const name = actions.label(state) || state.name || `state ${state.id.slice(0, 8)}`;
  const open = button(name, `Show ${name}`, () => actions.open(state));
  open.classList.add('name');
  open.title = name;
  const facts = document.createElement('span');
  facts.className = 'hint';
  facts.textContent = `${state.tokens} tokens`;
  const path = `/v1/states/${state.id}`;
  const pin = button(state.pinned ? 'Unpin' : 'Pin', `${state.pinned ? 'Unpin' : 'Pin'} ${name}`,
      () => change(`${path}/pin`, {method: 'POST', body: {pinned: !state.pinned}}));
  row.append(open, facts, button('Go on', `Go on from ${name}`, () => actions.goOn(state)), pin,
      button('Release', `Release ${name}`, () => change(path, {method: 'DELETE'})));
  item.append(row);
  if (children.length > 0) {
    const below = document.createElement('ul');
    below.append(...children);
    item.append(below);
  }
  return item;
}

// Returns whether the server keeps states, or undefined if it did not say.
export async function refreshTree() {
  let listing;
  try {
    listing = await ask('/v1/states');
  } catch (error) {
    note.textContent = error.status === 401 ? 'States need an API key.' : error.message;
    list.replaceChildren();
    size.textContent = '';
    return undefined;
  }
  const states = listing.data;
  const ids = new Set(states.map((state) => state.id));
  actions.onGone([...known].filter((id) => !ids.has(id)));
  known = ids;
  const below = new Map();
  for (const state of states.toReversed()) {  // the earliest first
    const parent = ids.has(state.parent) ? state.parent : '';
    if (!below.has(parent)) below.set(parent, []);
    below.get(parent).push(state);
  }
  const nodes = (parent) => (below.get(parent) || []).map((state) => node(state, nodes(state.id)));
  list.replaceChildren(...nodes(''));
  const none = listing.max_bytes === 0 ? 'This server keeps no states.' :
                                         'What requests have kept shows here.';
  note.textContent = states.length === 0 ? none : '';
  const mb = (bytes) => (bytes / 1e6).toFixed(1);
  size.textContent =
      states.length === 0 ? '' : `${mb(listing.bytes)} of ${mb(listing.max_bytes)} MB`;
  return listing.max_bytes > 0;
}
