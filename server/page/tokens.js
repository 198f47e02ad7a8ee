// Tokens as the API gives them, and as spans that show how likely they were.

// The natural logarithm from which on a token is as tinted as can be: 0.7%.
const kMostSurprise = 5;

const utf8 = new TextEncoder();

// A token's name in log-probabilities is its text, or bytes:\xe2\x80, or
// token_id:257.
function bytesOf(name) {
  if (!name.startsWith('bytes:')) return utf8.encode(name);
  return Uint8Array.from(
      [...name.matchAll(/\\x([0-9a-f]{2})/g)].map((match) => parseInt(match[1], 16)));
}

export const isId = (name) => /^token_id:\d+$/.test(name);

// How a token is shown by itself.
export function nameOf(name) {
  if (isId(name)) return `‹${name.slice('token_id:'.length)}›`;
  if (name.startsWith('bytes:')) return name.slice('bytes:'.length);
  return JSON.stringify(name).slice(1, -1).replaceAll('\\"', '"').replaceAll(' ', '␣');
}

export function percent(logprob) {
  const value = 100 * Math.exp(logprob);
  if (value >= 99.95) return '100%';
  if (value < 0.01) return '<0.01%';
  return `${value.toPrecision(value < 1 ? 1 : 3)}%`;
}

const likeliestFirst = (a, b) => b.logprob - a.logprob;

// The tokens of a choice of /v1/completions.
export function completionTokens(choice) {
  const given = choice.logprobs;
  if (!given) return [];
  return given.tokens.map((name, i) => ({
    name,
    logprob: given.token_logprobs[i],
    top: Object.entries(given.top_logprobs[i] || {})
             .map(([other, logprob]) => ({name: other, logprob}))
             .sort(likeliestFirst),
  }));
}

// The tokens of a choice of /v1/chat/completions.
export function chatTokens(choice) {
  const given = choice.logprobs && choice.logprobs.content;
  return (given || []).map((token) => ({
    name: token.token,
    logprob: token.logprob,
    top: (token.top_logprobs || [])
             .map((other) => ({name: other.token, logprob: other.logprob}))
             .sort(likeliestFirst),
  }));
}

// Joins the bytes of tokens to characters, which may be of several tokens.
export class Joiner {
  constructor() {
    this.decoder = new TextDecoder();
  }
  // The characters that the token completes.
  add(name) {
    if (isId(name)) return '';
    return this.decoder.decode(bytesOf(name), {stream: true});
  }
}

// The tokens of one request, in a box. Arrow keys move between them; there is
// one stop for the Tab key.
export class TokenView {
  // `onShow(index, pinned)`: a token is looked at; pinned: it was chosen.
  constructor(box, {onShow, onLeave}) {
    this.box = box;
    this.spans = [];
    this.tokens = [];
    this.joiner = new Joiner();
    this.text = '';
    this.onShow = onShow;
    box.addEventListener('keydown', (event) => this.key(event));
    box.addEventListener('pointerover', (event) => {
      const index = this.indexOf(event.target);
      if (index >= 0 && event.pointerType === 'mouse') onShow(index, false);
    });
    box.addEventListener('pointerleave', onLeave);
    box.addEventListener('click', (event) => {
      const index = this.indexOf(event.target);
      if (index >= 0) onShow(index, true);
    });
    box.addEventListener('focusin', (event) => {
      const index = this.indexOf(event.target);
      if (index >= 0 && event.target.matches(':focus-visible')) onShow(index, false);
    });
  }

  indexOf(element) {
    const span = element.closest('.token');
    return span ? Number(span.dataset.index) : -1;
  }

  add(token, kind) {
    const span = document.createElement('span');
    const text = this.joiner.add(token.name);
    span.className = 'token';
    span.dataset.index = this.spans.length;
    span.tabIndex = this.spans.length === 0 ? 0 : -1;
    if (kind) span.classList.add(kind);
    if (text === '') {
      span.textContent = isId(token.name) ? nameOf(token.name) : '·';
      span.classList.add('part');
    } else {
      span.textContent = text;
      if (text.includes('\n')) span.classList.add('break');
    }
    if (token.logprob !== undefined) {
      const surprise = Math.min(1, -token.logprob / kMostSurprise);
      span.style.setProperty('--surprise', surprise.toFixed(3));
    }
    this.box.append(span);
    this.spans.push(span);
    this.tokens.push(token);
    this.text += text;
  }

  // The text before a token.
  textBefore(index) {
    const joiner = new Joiner();
    return this.tokens.slice(0, index).map((token) => joiner.add(token.name)).join('');
  }

  key(event) {
    const index = this.indexOf(event.target);
    if (index < 0) return;
    const to = {ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0,
                End: this.spans.length - 1}[event.key];
    if (event.key === 'Enter' || event.key === ' ') {
      this.onShow(index, true);
    } else if (to !== undefined && to >= 0 && to < this.spans.length) {
      this.spans[index].tabIndex = -1;
      this.spans[to].tabIndex = 0;
      this.spans[to].focus();
    } else {
      return;
    }
    event.preventDefault();
  }
}
