// One request and its answer, as a card.
import {hideDetail, leaveDetail, showDetail} from './detail.js';
import {TokenView} from './tokens.js';

function make(tag, className = '', text = '') {
  const element = document.createElement(tag);
  element.className = className;
  element.textContent = text;
  return element;
}

const ms = (time) => time < 1000 ? `${Math.round(time)} ms` : `${(time / 1000).toFixed(2)} s`;

let count = 0;

export class Run {
  // `title`: what was asked for; `before`: the text that the tokens follow.
  // `onBranch(run, index, other)`: see detail.js.
  constructor({title, before, onBranch}) {
    this.number = ++count;
    this.title = title;
    this.before = before;
    this.onBranch = onBranch;
    this.stateId = null;   // of its end, if that is kept
    this.first = 0;        // the tokens of that state before those shown
    this.why = 'Its state comes when the request is done.';
    this.began = performance.now();
    this.firstToken = 0;
    this.lastToken = 0;
    this.unshown = [];     // what has come since the last frame
    this.frame = 0;

    this.card = make('article', 'run');
    this.card.tabIndex = -1;
    const header = make('header');
    this.heading = make('h3', '', `#${this.number} ${title}`);
    this.heading.id = `run-${this.number}`;
    this.card.setAttribute('aria-labelledby', this.heading.id);
    this.chips = make('span', 'hint');
    header.append(this.heading, this.chips);
    this.text = make('div', 'text');
    this.text.tabIndex = 0;  // it may scroll
    this.text.setAttribute('role', 'region');
    this.text.setAttribute('aria-label', `Text of request ${this.number}`);
    if (before) this.text.append(make('span', 'before', before));
    const box = make('span', 'tokens');
    box.setAttribute('role', 'group');
    box.setAttribute('aria-label', 'Tokens. Arrow keys move between them; Enter has alternatives.');
    this.text.append(box);
    this.facts = make('p', 'facts');
    this.card.append(header, this.text, this.facts);
    this.view = new TokenView(box, {
      onShow: (index, pin) => this.show(index, pin),
      onLeave: leaveDetail,
    });
  }

  show(index, pin) {
    const token = this.view.tokens[index];
    const can = this.stateId !== null && this.first + index > 0;
    showDetail({
      span: this.view.spans[index],
      token,
      index,
      pin,
      why: this.stateId === null ? this.why : 'There is nothing before it to branch from.',
      branch: can ? (other) => {
        hideDetail();
        this.onBranch(this, index, other);
      } : null,
    });
  }

  // Adds the tokens of an event, or text that has none.
  add(tokens, text, thinks = false) {
    if (tokens.length === 0 && !text) return;
    this.lastToken = performance.now();
    this.firstToken ||= this.lastToken;
    this.unshown.push({tokens, text, thinks});
    this.frame ||= requestAnimationFrame(() => this.flush());
  }

  // Shows what has come, once a frame: a fast model has many events in one, and
  // the size of the text is costly to ask for.
  flush() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    const near = this.text.scrollHeight - this.text.scrollTop - this.text.clientHeight < 40;
    for (const {tokens, text, thinks} of this.unshown) {
      for (const token of tokens) this.view.add(token, thinks ? 'thought' : '');
      if (tokens.length === 0) this.view.box.append(text);
    }
    this.unshown = [];
    if (near) this.text.scrollTop = this.text.scrollHeight;
  }

  fact(name, value) {
    const span = make('span', '', `${name} `);
    span.append(make('b', '', value));
    this.facts.append(span);
  }

  // Shows what the request took. `usage` may be absent: it was stopped.
  finish({usage, reason}) {
    this.flush();
    const now = performance.now();
    this.facts.replaceChildren();
    if (usage) {
      const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
      this.fact('prompt', `${usage.prompt_tokens}`);
      this.fact('cached', `${cached}`);
      this.fact('generated', `${usage.completion_tokens}`);
    } else {
      this.fact('generated', `${this.view.tokens.length}`);
    }
    if (this.firstToken) {
      this.fact('first token', ms(this.firstToken - this.began));
      const rest = this.view.tokens.length - 1;
      const rate = 1000 * rest / Math.max(this.lastToken - this.firstToken, 1);
      if (rest > 0) this.fact('then', `${rate.toFixed(rate < 10 ? 1 : 0)} tokens/s`);
    }
    this.fact('in all', ms(now - this.began));
    this.fact('ended by', reason);
  }

  fail(message) {
    const line = make('p', 'error', message);
    line.setAttribute('role', 'alert');
    this.card.append(line);
    this.why = 'There is no state to branch from: the request failed.';
  }

  // Its end is kept as the state `id` of `tokens` tokens, `generated` of them
  // shown here.
  kept(id, tokens, generated) {
    this.stateId = id;
    this.first = tokens - generated;
    this.card.dataset.state = id;
  }

  lost(why) {
    this.stateId = null;
    this.why = why;
    delete this.card.dataset.state;
  }

  // The text before a token, from the start on.
  textBefore(index) {
    return this.before + this.view.textBefore(index);
  }

  label() {
    const text = (this.before + this.view.text).trim().replaceAll(/\s+/g, ' ');
    return `#${this.number} ${text.slice(0, 24)}${text.length > 24 ? '…' : ''}`;
  }

  choose() {
    for (const other of document.querySelectorAll('.run[data-chosen]')) {
      delete other.dataset.chosen;
    }
    this.card.dataset.chosen = '';
    this.card.scrollIntoView({block: 'nearest'});
    this.card.focus({preventScroll: true});
  }
}
