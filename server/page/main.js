// The page: reads the form, sends requests, and shows what comes back.
import {ask, setKey, stream} from './api.js';
import {pollLoad} from './load.js';
import {Run} from './run.js';
import {Joiner, chatTokens, completionTokens, isId, nameOf} from './tokens.js';
import {refreshTree, setTreeActions} from './tree.js';

const at = (id) => document.getElementById(id);
const runs = [];
const forks = new Map();  // id to label
let messages = [];        // of the chat
let running = null;       // its AbortController

function say(text) {
  at('status').textContent = text;
}

const mode = () => document.querySelector('input[name="mode"]:checked').value;
const number = (id) => at(id).value === '' ? undefined : Number(at(id).value);
const randomSeed = () => crypto.getRandomValues(new Uint32Array(1))[0] >>> 1;

// What requests of either kind have in common.
function options() {
  return {
    max_tokens: number('max-tokens'),
    temperature: number('temperature'),
    top_p: number('top-p'),
    seed: number('seed') ?? randomSeed(),
    stream: true,
    stream_options: {include_usage: true},
    keep_state: at('keep').checked && !at('keep').disabled ? true : undefined,
  };
}

function addRun(fields) {
  const run = new Run({...fields, onBranch: branch});
  runs.push(run);
  at('empty').hidden = true;
  at('runs').append(run.card);
  run.card.scrollIntoView({block: 'nearest'});
  return run;
}

// Takes the parts of an event that both kinds of answer have.
function takeEnd(run, choice, end) {
  if (choice.finish_reason) end.reason = choice.finish_reason;
  if (choice.state) end.state = choice.state;
  if (choice.state_error) end.stateError = choice.state_error;
}

// Sends one request and shows its answer in `run`. Returns whether it was whole.
async function send(run, path, body, take) {
  running = new AbortController();
  at('send').disabled = true;
  at('stop').hidden = false;
  say('Generating…');
  run.chips.textContent = `seed ${body.seed}`;
  const end = {reason: 'stopped here'};
  let whole = false;
  try {
    for await (const event of stream(path, body, running.signal)) {
      if (event.usage) end.usage = event.usage;
      for (const choice of event.choices) {
        take(choice);
        takeEnd(run, choice, end);
      }
    }
    whole = true;
  } catch (error) {
    if (error.name !== 'AbortError') run.fail(error.message);
  }
  run.finish(end);
  if (end.state) {
    run.kept(end.state.id, end.state.tokens,
        end.usage?.completion_tokens ?? run.view.tokens.length);
  } else {
    run.lost(end.stateError ? `Its state was not kept: ${end.stateError}` :
             body.keep_state ? 'It did not end, so that it has no state to branch from.' :
                               'Its state was not kept: see Options.');
  }
  running = null;
  at('send').disabled = false;
  at('stop').hidden = true;
  say(whole ? `Done: ${run.view.tokens.length} tokens.` : 'Ended before it was done.');
  await refreshTree();
  return whole;
}

function complete(run, body) {
  return send(run, '/v1/completions', {...options(), logprobs: number('alternatives'), ...body},
      (choice) => run.add(completionTokens(choice), choice.text));
}

async function chat(text) {
  const title = 'Chat';
  const run = addRun({title, before: `${text}\n\n`});
  const system = at('system').value.trim();
  const asked = [...messages, {role: 'user', content: text}];
  const conversation = messages;
  let answer = '';
  const whole = await send(run, '/v1/chat/completions', {
    ...options(),
    messages: system ? [{role: 'system', content: system}, ...asked] : asked,
    logprobs: true,
    top_logprobs: number('alternatives'),
  }, (choice) => {
    const delta = choice.delta || {};
    const thought = delta.reasoning_content || '';
    answer += delta.content || '';
    run.add(chatTokens(choice), thought || delta.content || '', thought !== '');
  });
  // Not if a new chat has begun meanwhile.
  if (whole && messages === conversation) messages = [...asked, {role: 'assistant', content: answer}];
  // What was refused can be sent again.
  if (!whole && run.view.tokens.length === 0 && at('input').value === '') at('input').value = text;
  at('clear').hidden = messages.length === 0;
}

// Draws the token `index` of a run again, or has `other` in its place, and goes on.
async function branch(from, index, other) {
  if (running) return say('A request is running: stop it first.');
  const place = from.first + index;
  let fork;
  try {
    fork = (await ask(`/v1/states/${from.stateId}/fork`, {method: 'POST', body: {at: place}}))
               .data[0];
  } catch (error) {
    return say(`No branch: ${error.message}`);
  }
  forks.set(fork.id, `fork of #${from.number} at ${place}`);
  let before = from.textBefore(index);
  const body = {from_state: fork.id};
  if (other) {
    body.prompt = isId(other.name) ? [Number(other.name.slice('token_id:'.length))] : other.name;
    before += isId(other.name) ? nameOf(other.name) : other.name;
  }
  const run = addRun({title: `Branch of #${from.number} at token ${index + 1}`, before});
  run.choose();
  await complete(run, body);
}

async function goOn(state) {
  if (running) return say('A request is running: stop it first.');
  const from = runs.find((run) => run.stateId === state.id);
  const before = from ? from.textBefore(from.view.tokens.length) : await textOf(state);
  if (before === null) return;
  const run = addRun({title: `On from ${from ? `#${from.number}` : 'a state'}`, before});
  run.choose();
  await complete(run, {from_state: state.id});
}

async function tokensOf(state) {
  try {
    return (await ask(`/v1/states/${state.id}/tokens`)).token_strs.map((name) => ({name}));
  } catch (error) {
    say(error.message);
    return null;
  }
}

async function textOf(state) {
  const tokens = await tokensOf(state);
  if (tokens === null) return null;
  const joiner = new Joiner();
  return tokens.map((token) => joiner.add(token.name)).join('');
}

// Shows a state: its request, or, of one that this page did not make, its tokens.
async function open(state) {
  let run = runs.find((one) => one.stateId === state.id);
  if (!run) {
    const tokens = await tokensOf(state);
    if (tokens === null) return;
    run = addRun({title: forks.get(state.id) || state.name || 'A state', before: ''});
    run.add(tokens, '');
    run.flush();
    run.kept(state.id, tokens.length, tokens.length);
  }
  run.choose();
}

function label(state) {
  const run = runs.find((one) => one.stateId === state.id);
  return run ? run.label() : forks.get(state.id) || '';
}

function onGone(ids) {
  for (const run of runs) {
    if (ids.includes(run.stateId)) run.lost('Its state is gone: it was released, or its time passed.');
  }
}

async function onSubmit(event) {
  event.preventDefault();
  if (running) return;
  const text = at('input').value;
  if (text === '') {
    at('input').focus();
    return say('Write something first.');
  }
  if (mode() === 'chat') {
    at('input').value = '';
    await chat(text);
  } else {
    await complete(addRun({title: 'Completion', before: text}), {prompt: text});
  }
}

function onMode() {
  const isChat = mode() === 'chat';
  at('system-field').hidden = !isChat;
  at('input-label').textContent = isChat ? 'Message' : 'Prompt';
  at('input').placeholder = isChat ? 'Say something' : 'def fibonacci(n):';
  at('send').textContent = isChat ? 'Send' : 'Generate';
  at('clear').hidden = !isChat || messages.length === 0;
}

// Whether the server has chat: it refuses a request without messages, and says
// so, unless it refuses all.
async function findChat() {
  const choice = document.querySelector('input[value="chat"]');
  let why = '';
  try {
    await ask('/v1/chat/completions', {method: 'POST', body: {messages: []}});
  } catch (error) {
    if (error.param !== 'messages') why = error.message;
  }
  choice.disabled = why !== '';
  if (why && choice.checked) document.querySelector('input[value="completion"]').checked = true;
  at('no-chat').hidden = why === '';
  at('no-chat').textContent = why ? `No chat: ${why}` : '';
  onMode();
}

async function findModel() {
  try {
    const model = (await ask('/v1/models')).data[0];
    at('model').textContent = `${model.id}, ${model.max_model_len.toLocaleString('en')} tokens`;
    document.title = `${model.id} – Recurve`;
    say('');
  } catch (error) {
    at('model').textContent = error.status === 401 ? 'needs an API key' : '…';
    if (error.status === 401) say('Give an API key first.');
  }
}

async function findAll() {
  await findModel();
  const [keeps] = await Promise.all([refreshTree(), findChat()]);
  at('keep').disabled = keeps === false;
  pollLoad();
}

setTreeActions({label, open, goOn, onGone});
at('form').addEventListener('submit', onSubmit);
at('stop').addEventListener('click', () => running?.abort());
at('clear').addEventListener('click', () => {
  messages = [];
  at('clear').hidden = true;
  say('A new chat.');
});
at('input').addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) at('form').requestSubmit();
});
for (const choice of document.querySelectorAll('input[name="mode"]')) {
  choice.addEventListener('change', onMode);
}
let waiting = 0;
at('key').addEventListener('input', () => {
  setKey(at('key').value);
  clearTimeout(waiting);
  waiting = setTimeout(findAll, 400);
});
findAll();
