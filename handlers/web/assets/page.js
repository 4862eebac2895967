// What the pages do beyond forms and links: fetch what moves again, and follow a log. Without this file every page still
// works; with it nothing but text from the Hub's own pages is put in.
'use strict';

(() => {
  const announce = document.getElementById('announce');
  let said = '';

  // Live regions: the page is fetched again and its [data-live] parts are put in place of the old ones.

  function focusIn(region) {
    const el = document.activeElement;
    if (!el || !region.contains(el)) return () => {};
    return (fresh) => {
      const same = el.id
        ? document.getElementById(el.id)
        : [...fresh.querySelectorAll(el.tagName)].find((other) => other.textContent === el.textContent);
      if (same) same.focus({ preventScroll: true });
    };
  }

  function swap(page) {
    for (const region of document.querySelectorAll('[data-live]')) {
      const fresh = page.getElementById(region.id);
      if (!fresh || fresh.innerHTML === region.innerHTML) continue;
      const refocus = focusIn(region);
      for (const open of region.querySelectorAll('details[id][open]')) {
        fresh.querySelector('#' + CSS.escape(open.id))?.setAttribute('open', '');
      }
      const now = document.adoptNode(fresh);
      region.replaceWith(now);
      refocus(now);
      const sentence = now.dataset.announce || '';
      if (announce && sentence && sentence !== said) announce.textContent = said = sentence;
    }
    document.title = page.title;
    document.body.dataset.refresh = page.body.dataset.refresh || '';
  }

  let fetching = false;
  let again = false;
  async function refresh() {
    if (fetching) {
      again = true;
      return;
    }
    fetching = true;
    try {
      const res = await fetch(location.href, { headers: { Accept: 'text/html' } });
      if (res.redirected || res.status === 404 || res.headers.has('Refresh')) { // signed out, gone, or it goes on elsewhere
        location.reload();
        return;
      }
      if (res.ok) swap(new DOMParser().parseFromString(await res.text(), 'text/html'));
    } catch {
      // The Hub is away; the next turn tries again.
    } finally {
      fetching = false;
      if (again) {
        again = false;
        setTimeout(refresh, 500);
      }
    }
  }

  for (const region of document.querySelectorAll('[data-announce]')) said = region.dataset.announce;

  const log = document.getElementById('log');

  if (!log) {
    // A page that answers a POST can't be fetched again by its address.
    const turn = () => {
      const seconds = Number(document.body.dataset.refresh || 0);
      if (!seconds) return;
      setTimeout(async () => {
        if (!document.hidden) await refresh();
        turn();
      }, seconds * 1000);
    };
    if (document.body.dataset.refresh) turn();
  }

  // The log: one stream a page, closed while nobody looks, taken up again where it was.

  if (log) {
    const rest = document.getElementById('log-rest');
    const state = document.getElementById('log-state');
    const jump = document.getElementById('log-jump');
    const empty = document.getElementById('log-empty');
    const earlier = document.getElementById('log-earlier');
    const keep = 512 * 1024; // characters on the page
    let next = log.dataset.next;
    let source = null;
    let ended = false;
    let shown = log.textContent.length;
    let failures = 0;

    const atEnd = () => log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    const toEnd = () => { log.scrollTop = log.scrollHeight; };
    log.addEventListener('scroll', () => { jump.hidden = atEnd(); }, { passive: true });
    jump.addEventListener('click', () => { toEnd(); log.focus(); });
    toEnd();

    function add(event) {
      const follow = atEnd();
      if (event.lines) {
        const span = document.createElement('span');
        span.textContent = event.lines;
        log.insertBefore(span, rest);
        shown += event.lines.length;
        while (shown > keep && log.firstElementChild !== span) {
          shown -= log.firstElementChild.textContent.length;
          log.firstElementChild.remove();
          earlier.hidden = false;
        }
      }
      rest.textContent = event.rest;
      if (event.lines || event.rest) empty.hidden = true;
      if (follow) toEnd();
      else jump.hidden = false;
    }

    function close() {
      source?.close();
      source = null;
    }

    function open() {
      if (ended || source || document.hidden) return;
      source = new EventSource(log.dataset.events + '?from=' + next);
      source.addEventListener('open', () => {
        state.textContent = 'live';
        if (failures) refresh();
        failures = 0;
      });
      source.addEventListener('log', (e) => {
        next = e.lastEventId;
        add(JSON.parse(e.data));
      });
      source.addEventListener('state', refresh);
      source.addEventListener('end', () => {
        ended = true;
        close();
        state.textContent = '';
        refresh();
      });
      source.addEventListener('error', () => {
        state.textContent = 'connection lost, trying again';
        if (source?.readyState !== EventSource.CLOSED) return; // the browser tries by itself
        close();
        failures += 1;
        setTimeout(() => { refresh(); open(); }, Math.min(1000 * 2 ** failures, 30000));
      });
    }

    document.addEventListener('visibilitychange', () => {
      if (document.hidden) {
        close();
        return;
      }
      if (!ended) refresh();
      open();
    });
    addEventListener('pagehide', close);
    addEventListener('pageshow', open);
    open();
  }

  // The preview of an import says how many it would add.

  const preview = document.querySelector('form[data-import]');
  if (preview) {
    const taken = preview.querySelector('[data-taken]');
    const count = () => {
      const all = new FormData(preview).get('all');
      taken.textContent = [...preview.querySelectorAll('select')].filter((choice) => {
        if ('exists' in choice.dataset && all === 'overwrite') return true;
        if ('exists' in choice.dataset && all === 'keep') return false;
        return choice.value === 'take';
      }).length;
    };
    preview.addEventListener('change', count);
    count();
  }

  // A draft that was typed and not saved isn't left by accident.

  const form = document.querySelector('form[data-unsaved]');
  if (form) {
    let dirty = form.dataset.unsaved === 'typed'; // shown again with what was typed
    form.addEventListener('input', () => { dirty = true; });
    form.addEventListener('submit', () => { dirty = false; });
    for (const drop of document.querySelectorAll('[data-drop]')) drop.addEventListener('click', () => { dirty = false; });
    addEventListener('beforeunload', (e) => { if (dirty) e.preventDefault(); });
  }
})();
