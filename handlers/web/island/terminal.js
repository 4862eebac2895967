// A terminal of a Session. What comes has the offsets of the terminal's output, what is typed those of this tab's input, so that
// after a lost connection both go on where they were: by WebSocket, or where a proxy lets none through, by events and POST.
import { Terminal } from '@xterm/xterm';
import { FitAddon } from '@xterm/addon-fit';

const box = document.getElementById('terminal');
const words = document.getElementById('terminal-state');
const reader = document.getElementById('terminal-reader');
const path = box.dataset.path;
const viewer = crypto.randomUUID ? crypto.randomUUID() : [...crypto.getRandomValues(new Uint8Array(16))].map((b) => b.toString(16).padStart(2, '0')).join('');

// The page's policy takes styles with its nonce, and none in attributes. xterm.js makes both; what it sets is set another way.
const create = document.createElement.bind(document);
document.createElement = (tag, options) => {
  const element = create(tag, options);
  if (tag === 'style') element.nonce = box.dataset.nonce;
  return element;
};
const setAttribute = Element.prototype.setAttribute;
Element.prototype.setAttribute = function set(name, value) {
  if (name === 'style') this.style.cssText = value;
  else setAttribute.call(this, name, value);
};

const term = new Terminal({
  scrollback: 5000,
  fontFamily: 'ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace',
  fontSize: matchMedia('(pointer: coarse)').matches ? 16 : 14,
  theme: { background: '#17181a', foreground: '#e6e6e3' },
  minimumContrastRatio: 4.5,
});
const fit = new FitAddon();
term.loadAddon(fit);
term.open(box);

reader.addEventListener('click', () => {
  const on = reader.getAttribute('aria-pressed') !== 'true';
  reader.setAttribute('aria-pressed', String(on));
  term.options.screenReaderMode = on;
  term.focus();
});
term.attachCustomKeyEventHandler((e) => {
  if (e.type !== 'keydown' || !e.ctrlKey || !e.shiftKey) return true;
  if (e.code === 'KeyX') { // WCAG 2.1.2: there is a way out
    e.preventDefault();
    reader.focus();
    return false;
  }
  if (e.code === 'KeyC' && term.hasSelection()) {
    e.preventDefault();
    navigator.clipboard?.writeText(term.getSelection());
    return false;
  }
  return true;
});

// Output.

let next = -1; // the offset that comes next
let shown = 0; // what was drawn
let told = 0; // what the Hub knows of that
let live = -1; // what is before this offset was printed before we came
let ended = false;

function output(at, bytes) {
  const end = at + bytes.length;
  if (next >= 0 && at > next) term.reset(); // something is missing: what stands there no longer fits
  if (next > at) bytes = bytes.subarray(next - at); // seen before
  if (end <= next) return;
  next = end;
  term.write(bytes, () => {
    shown = end;
    if (shown - told >= 131072 || shown === next) {
      told = shown;
      line?.steer({ taken: shown });
    }
  });
}

// What a program asks the terminal is answered by the tab that somebody is in, once, and never for what was printed before.
const quiet = () => shown < live || !document.hasFocus();
for (const id of [{ final: 'c' }, { prefix: '>', final: 'c' }, { prefix: '=', final: 'c' }, { final: 'n' }, { prefix: '?', final: 'n' },
  { intermediates: '$', final: 'p' }, { prefix: '?', intermediates: '$', final: 'p' }]) {
  term.parser.registerCsiHandler(id, quiet);
}
for (const color of [4, 10, 11, 12]) term.parser.registerOscHandler(color, (data) => data.includes('?') && quiet());

// Size: that of who typed or came last. Others show the terminal as it is.

let size = { rows: 0, cols: 0 };
let mine = false;
function measure() {
  if (ended) return;
  const want = fit.proposeDimensions();
  if (!want || !want.rows || !want.cols || Number.isNaN(want.rows)) return;
  mine = true;
  term.resize(want.cols, want.rows);
  if (want.rows === size.rows && want.cols === size.cols) return;
  size = { rows: want.rows, cols: want.cols };
  line?.steer(size);
}
let settling = 0;
new ResizeObserver(() => {
  if (!mine) return;
  clearTimeout(settling);
  settling = setTimeout(measure, 60);
}).observe(box);
addEventListener('focus', () => { if (!mine) measure(); });

// Input: kept until the Hub has it.

const most = 65536; // under way
const piece = 16384;
let base = 0; // what the Hub has
let waiting = new Uint8Array(0); // what it may lack
let sent = 0; // of that

function append(bytes) {
  if (ended) return;
  doubt = '';
  if (!mine) measure();
  const all = new Uint8Array(waiting.length + bytes.length);
  all.set(waiting);
  all.set(bytes, waiting.length);
  waiting = all;
  push();
}

function push() {
  // Not before it has said what it has: a Hub that was restarted knows none of this tab's offsets.
  while (line?.open && greeted && sent < waiting.length && sent < most) {
    const part = waiting.subarray(sent, Math.min(sent + piece, waiting.length, most));
    if (!line.type(base + sent, part)) return;
    sent += part.length;
  }
}

function taken(upTo) {
  if (upTo <= base) return;
  const n = Math.min(upTo - base, waiting.length);
  waiting = waiting.slice(n);
  sent = Math.max(0, sent - n);
  base = upTo;
  push();
}

const utf8 = new TextEncoder();
term.onData((text) => append(utf8.encode(text)));
term.onBinary((text) => append(Uint8Array.from(text, (c) => c.charCodeAt(0))));

// State.

function say(text) {
  if (words.textContent !== text) words.textContent = text;
}

let greeted = false; // over this connection
let doubt = ''; // what was said of input that may be, until something is typed
function state(now) {
  if (!greeted) {
    greeted = true;
    if (now.in < base) { // a Hub that was restarted: what was under way may have arrived, so it is not sent twice
      waiting = waiting.slice(sent);
      base = now.in;
      if (sent) doubt = 'The Hub was restarted while you typed: look whether all of it arrived.';
    }
    sent = 0;
    taken(now.in);
    if (live < 0) live = now.end;
    if (!now.rows || document.hasFocus()) {
      size = { rows: 0, cols: 0 };
      measure();
    } else if (mine) {
      line.steer(size);
    }
    push();
  } else {
    taken(now.in);
  }
  if (now.rows && (now.rows !== size.rows || now.cols !== size.cols)) {
    size = { rows: now.rows, cols: now.cols };
    mine = mine && term.rows === now.rows && term.cols === now.cols;
    term.resize(now.cols, now.rows);
  }
  if (now.ended) finish('This terminal has ' + now.ended + '.');
  else say(now.up ? doubt : 'Waiting for the Runner…');
}

function finish(text) {
  ended = true;
  say(text);
  term.options.disableStdin = true;
  line?.close();
}

// The two lines to the Hub. Each has open, type, steer and close, and calls lost when it has ended by itself.

let line = null;

function address(kind, more) {
  return path + '/' + kind + '?' + new URLSearchParams({ viewer, ...more });
}

function socket(up, lost) {
  const ws = new WebSocket(address('socket', { from: String(next) }));
  ws.binaryType = 'arraybuffer';
  const l = {
    open: false,
    type(at, bytes) {
      if (ws.bufferedAmount > 4 * most) return false;
      const b = new Uint8Array(8 + bytes.length);
      new DataView(b.buffer).setBigUint64(0, BigInt(at));
      b.set(bytes, 8);
      ws.send(b);
      return true;
    },
    steer(what) { if (l.open) ws.send(JSON.stringify(what)); },
    close() { ws.close(); },
  };
  ws.onopen = () => { l.open = true; up(); };
  ws.onmessage = (e) => {
    if (typeof e.data === 'string') state(JSON.parse(e.data));
    else output(Number(new DataView(e.data).getBigUint64(0)), new Uint8Array(e.data, 8));
  };
  ws.onclose = (e) => { l.open = false; lost(e.code === 1008); };
  return l;
}

function events(up, lost) {
  const source = new EventSource(address('events', { from: String(next) }));
  let steering = null;
  let busy = false;
  let typing = false;
  const l = {
    open: false,
    type(at, bytes) { // one after the other
      if (typing) return false;
      typing = true;
      const copy = bytes.slice();
      fetch(address('input', { offset: String(at) }), { method: 'POST', body: copy, headers: { 'Content-Type': 'application/octet-stream' } })
        .then((res) => (res.ok ? res.json() : Promise.reject(new Error(res.status))))
        .then((res) => {
          typing = false;
          sent = 0;
          taken(res.in);
          push();
        })
        .catch(() => {
          typing = false;
          sent = 0;
          setTimeout(push, 1000);
        });
      return true;
    },
    steer(what) { // the newest of each counts
      steering = { ...steering, ...what };
      if (busy) return;
      busy = true;
      const body = JSON.stringify(steering);
      steering = null;
      fetch(address('steer'), { method: 'POST', body, headers: { 'Content-Type': 'application/json' } }).catch(() => {}).finally(() => {
        busy = false;
        if (steering) l.steer({});
      });
    },
    close() { source.close(); },
  };
  source.addEventListener('open', () => { l.open = true; up(); });
  source.addEventListener('state', (e) => state(JSON.parse(e.data)));
  source.addEventListener('output', (e) => {
    const { at, data } = JSON.parse(e.data);
    output(at, Uint8Array.from(atob(data), (c) => c.charCodeAt(0)));
  });
  const over = (denied) => {
    source.close();
    l.open = false;
    lost(denied);
  };
  source.addEventListener('end', () => over(!ended));
  source.addEventListener('error', () => over(false));
  return l;
}

const ways = [socket, events];
let way = 0;
let tries = 0;

function connect() {
  let opened = false;
  greeted = false;
  const l = ways[way](() => { opened = true; tries = 0; say(''); }, (denied) => {
    if (line !== l || ended) return;
    line = null;
    if (denied) {
      finish('You no longer have access, or are signed out. Load the page again.');
      return;
    }
    if (!opened) way = 1 - way; // this way isn't let through, or the Hub is away
    tries += 1;
    say('Connection lost, trying again…');
    setTimeout(connect, Math.min(200 * 2 ** Math.min(tries, 6), 5000));
  });
  line = l;
}

if (box.dataset.ended) measure();
connect();
term.focus();
