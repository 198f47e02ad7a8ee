// Calls of this server's API. The key is in this variable and nowhere else: it
// is gone with the tab.
let key = '';

export function setKey(value) {
  key = value.trim();
}

export class ApiError extends Error {
  constructor(status, error) {
    super(error.message || `the server answered ${status}`);
    this.status = status;
    this.param = error.param || '';
  }
}

function headers(body) {
  const all = {};
  if (key) all['Authorization'] = `Bearer ${key}`;
  if (body !== undefined) all['Content-Type'] = 'application/json';
  return all;
}

async function send(path, method, body, signal) {
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: headers(body),
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: 'no-store',
      credentials: 'omit',
    });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError(0, {message: 'the server does not answer'});
  }
  if (response.ok) return response;
  let error = {};
  try {
    error = (await response.json()).error || {};
  } catch {
    // Not of this server: the status has to do.
  }
  throw new ApiError(response.status, error);
}

export async function ask(path, {method = 'GET', body, signal} = {}) {
  return (await send(path, method, body, signal)).json();
}

export async function askText(path, signal) {
  return (await send(path, 'GET', undefined, signal)).text();
}

// The events of a streamed answer, one object each.
export async function* stream(path, body, signal) {
  const response = await send(path, 'POST', body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  while (true) {
    const {done, value} = await reader.read();
    if (done) throw new ApiError(0, {message: 'the connection ended before the answer did'});
    const parts = (rest + value).split('\n\n');
    rest = parts.pop();
    for (const part of parts) {
      if (!part.startsWith('data: ')) continue;  // a comment
      const data = part.slice('data: '.length);
      if (data === '[DONE]') return;
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(0, event.error);
      yield event;
    }
  }
}
