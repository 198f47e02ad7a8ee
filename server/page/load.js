// The server's load, from its metrics, while the tab is visible.
import {ApiError, askText} from './api.js';

const kEvery = 2000;   // ms
const kSamples = 60;   // of the curve

const at = (id) => document.getElementById(id);
const rates = [];
let last = null;
let timer = 0;
let refused = false;

// {name: {labels: value}} of a text of metrics; labels as they are written.
export function parseMetrics(text) {
  const all = {};
  for (const line of text.split('\n')) {
    const match = /^([a-z_]+)(?:\{(.*)\})? (\S+)/.exec(line);
    if (match) (all[match[1]] ||= {})[match[2] || ''] = Number(match[3]);
  }
  return all;
}

function gauge(id, series) {
  const used = series?.['state="used"'] ?? 0;
  const total = series?.['state="total"'] ?? 0;
  const meter = at(id);
  meter.max = Math.max(total, 1);
  meter.high = 0.9 * meter.max;
  meter.value = used;
  meter.parentElement.hidden = total === 0;  // a model without any
  at(`${id}-text`).textContent = `${used} of ${total}`;
}

function show(metrics) {
  const value = (name) => metrics[name]?.[''] ?? 0;
  at('running').textContent = value('recurve_num_requests_running');
  at('waiting').textContent = value('recurve_num_requests_waiting');
  gauge('slots', metrics.recurve_state_slots);
  gauge('pages', metrics.recurve_tpa_pages);
  const prompt = value('recurve_prompt_tokens_total');
  const hit = value('recurve_prefix_cache_hit_tokens_total');
  at('hits').textContent = prompt > 0 ? `${Math.round(100 * Math.min(1, hit / prompt))}%` : '–';
  const now = {time: performance.now(), tokens: value('recurve_generation_tokens_total')};
  if (last && now.tokens >= last.tokens) {
    rates.push(1000 * (now.tokens - last.tokens) / (now.time - last.time));
    if (rates.length > kSamples) rates.shift();
    at('rate').textContent = Math.round(rates.at(-1));
    const most = Math.max(...rates, 1);
    const points = rates.map((rate, i) => `${120 * i / (kSamples - 1)},${31 - 30 * rate / most}`);
    at('spark').firstElementChild.setAttribute('points', points.join(' '));
  }
  last = now;
  const serving = metrics.recurve_serving?.[''] === 1;
  setHealth(serving ? 'good' : 'bad', serving ? 'serving' : 'not serving');
}

export function setHealth(state, text) {
  const chip = at('health');
  chip.dataset.state = state;
  if (chip.textContent !== text) chip.textContent = text;
}

async function health() {
  try {
    setHealth((await fetch('/health', {cache: 'no-store'})).ok ? 'good' : 'bad', 'serving');
    if (at('health').dataset.state === 'bad') setHealth('bad', 'not serving');
  } catch {
    setHealth('bad', 'no answer');
  }
}

async function poll() {
  if (document.visibilityState === 'visible') {
    try {
      if (refused) {
        await health();
      } else {
        show(parseMetrics(await askText('/metrics')));
        at('load').hidden = false;
        at('load-note').textContent = '';
      }
    } catch (error) {
      last = null;
      at('load').hidden = true;
      const note = error instanceof ApiError && {
        401: 'The load needs the key of an admin.',
        403: 'The load needs the key of an admin.',
        404: 'Metrics are on a port of their own (--metrics-port).',
      }[error.status];
      refused = Boolean(note);
      at('load-note').textContent = note || 'The server does not answer.';
      await health();
    }
  } else {
    last = null;  // no rate over the time away
  }
  timer = setTimeout(poll, kEvery);
}

// Asks now; again after a new key.
export function pollLoad() {
  refused = false;
  clearTimeout(timer);
  poll();
}
document.addEventListener('visibilitychange', () => {
  if (document.visibilityState === 'visible') {
    clearTimeout(timer);
    poll();
  }
});
