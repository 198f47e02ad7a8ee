// The card of one token: how likely it was, what else there was, and branching.
import {isId, nameOf, percent} from './tokens.js';

const card = document.getElementById('detail');
let pinned = false;
let shown = null;  // the span
let leaving = 0;

function make(tag, text, className = '') {
  const element = document.createElement(tag);
  element.textContent = text;
  element.className = className;
  return element;
}

export function hideDetail() {
  clearTimeout(leaving);
  if (shown) {
    delete shown.dataset.shown;
    shown.removeAttribute('aria-describedby');
  }
  const back = pinned && card.contains(document.activeElement) ? shown : null;
  shown = null;
  pinned = false;
  card.hidden = true;
  if (back) back.focus();
}

// The pointer has left the tokens: it may be on its way to the card.
export function leaveDetail() {
  if (pinned) return;
  clearTimeout(leaving);
  leaving = setTimeout(hideDetail, 250);
}

function place(span) {
  const at = span.getBoundingClientRect();
  const width = card.offsetWidth;
  const left = Math.max(8, Math.min(at.left, document.documentElement.clientWidth - width - 8));
  card.style.left = `${left + window.scrollX}px`;
  card.style.top = `${at.bottom + window.scrollY + 6}px`;
}

// `branch(other)` begins a branch at the token: drawn again, or with another
// in its place; null: there is no state to branch from, for the reason `why`.
export function showDetail({span, token, index, branch, why, pin}) {
  if (pinned && !pin) return;
  hideDetail();
  const title = make('h3', `Token ${index + 1}: `);
  title.append(make('code', nameOf(token.name)));
  card.replaceChildren(title);
  if (token.logprob === undefined) {
    card.append(make('p', 'How likely it was is not known: this page did not make it.', 'hint'));
  } else {
    card.append(make('p', `Probability ${percent(token.logprob)}`));
  }
  if (token.top && token.top.length > 0) {
    const list = document.createElement('ol');
    list.setAttribute('aria-label', 'Alternatives, the likeliest first');
    for (const other of token.top) {
      const item = document.createElement('li');
      item.style.setProperty('--part', Math.exp(other.logprob).toFixed(4));
      item.append(make('code', nameOf(other.name)), make('span', percent(other.logprob)));
      const drawn = other.name === token.name;
      if (drawn) item.dataset.drawn = '';
      const usable = isId(other.name) || !other.name.startsWith('bytes:');
      if (branch && !drawn && usable) {
        const button = make('button', 'Take', 'small');
        button.type = 'button';
        button.setAttribute('aria-label', `Branch with ${nameOf(other.name)} in its place`);
        button.addEventListener('click', () => branch(other));
        item.append(button);
      } else {
        item.append(make('span', drawn ? 'drawn' : '', 'hint'));
      }
      list.append(item);
    }
    card.append(list);
  }
  if (branch) {
    const button = make('button', 'Branch here', 'primary');
    button.type = 'button';
    button.addEventListener('click', () => branch(null));
    card.append(button);
  } else {
    card.append(make('p', why, 'hint'));
  }
  card.hidden = false;
  shown = span;
  pinned = pin;
  span.dataset.shown = '';
  span.setAttribute('aria-describedby', 'detail');
  place(span);
  if (pin) card.querySelector('button')?.focus({preventScroll: true});
}

card.addEventListener('pointerenter', () => clearTimeout(leaving));
card.addEventListener('pointerleave', leaveDetail);
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape' && !card.hidden) hideDetail();
});
document.addEventListener('pointerdown', (event) => {
  if (!card.hidden && !card.contains(event.target) && !event.target.closest('.token')) hideDetail();
});
