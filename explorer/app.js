// The page: header, tabs, keys, theme, and the view that is shown. Lives in a shadow root and makes no globals.

const kViewTypes = {heads: HeadsView, head: HeadView, compare: CompareView, query: QueryView, about: AboutView};

class App {
  constructor(root, source) {
    Object.assign(this, {source, views: new Map(), rowsOf: new Map()});
    this.measures = new Measures(source);
    this.state = new State(source, (state, before) => this.update(state, before));
    this.main = el("main", {});
    this.live = el("div", {class: "unseen", role: "status", "aria-live": "polite"});
    this.notice = el("p", {class: "notice", role: "status"});
    this.keys = el("dialog", {"aria-label": "Keys"}, el("h2", {}, "Keys"), keyList(), el("form", {method: "dialog"},
      el("button", {}, "close")));
    this.frame = el("div", {class: "frame"}, this.header(), this.notice, this.main, this.live, this.keys);
    root.append(this.frame);
    this.preferred = matchMedia("(prefers-color-scheme: dark)");
    this.preferred.addEventListener("change", this.onTheme = () => this.update(this.state.current, null));
    document.addEventListener("keydown", this.onKey = (event) => this.key(event));
    this.observer = new ResizeObserver(() => this.resized());
    this.observer.observe(this.frame);
    this.width = this.frame.clientWidth;
    this.update(this.state.current, null);
  }

  header() {
    const {meta} = this.source;
    const count = this.source.cross ? `${meta.nq} → ${meta.nk} tokens` : `${meta.nq} token${meta.nq === 1 ? "" : "s"}`;
    const kv = meta.kv < meta.heads ? `, ${meta.kv} key/value head${meta.kv === 1 ? "" : "s"}` : "";
    const precision = meta.precision ? ` (${meta.precision})` : "";
    this.tabs = kViews.map(([id, title]) => el("button", {dataset: {view: id}, on: {
      click: () => this.state.set({v: id})}}, title));
    this.themeButton = el("button", {class: "theme", on: {click: () => this.toggleTheme()}});
    return el("header", {}, el("h1", {}, "Polyhead"), el("p", {class: "model"},
      `${meta.model}${precision} · ${meta.layers} layers × ${meta.heads} heads${kv} · ${count}`),
    el("nav", {"aria-label": "Views"}, this.tabs, this.themeButton));
  }

  theme() {
    return this.state.current.t ?? (this.preferred.matches ? "dark" : "light");
  }

  toggleTheme() {
    this.state.set({t: this.theme() === "dark" ? "light" : "dark"});
  }

  update(state, before) {
    const theme = this.theme();
    if (this.shownTheme !== theme) {
      this.shownTheme = theme;
      this.scales = themeScales(theme);
      this.frame.dataset.theme = theme;
      document.documentElement.style.setProperty("background", theme === "dark" ? "#15171c" : "#fbfbf9");
      document.documentElement.style.setProperty("color-scheme", theme);
      this.themeButton.textContent = theme === "dark" ? "☀ light" : "☾ dark";
    }
    for (const tab of this.tabs) {
      if (tab.dataset.view === state.v) tab.setAttribute("aria-current", "page");
      else tab.removeAttribute("aria-current");
    }
    this.notice.hidden = !this.state.foreign;
    this.notice.textContent = this.state.foreign
      ? "The link belongs to another page; this is the first view of this one." : "";
    if (!this.views.has(state.v)) this.views.set(state.v, new kViewTypes[state.v](this));
    const view = this.views.get(state.v);
    if (this.main.firstChild !== view.element) replace(this.main, view.element);
    view.update(state);
  }

  /** Rows in a mode; one object a mode. */
  rows(mode) {
    if (!this.rowsOf.has(mode)) this.rowsOf.set(mode, new Rows(this.source, mode));
    return this.rowsOf.get(mode);
  }

  /** Locks a query, a key or both, and says so; null unlocks. */
  lock(q, k) {
    this.state.set({q, k, ...this.inView(q, k)});
    const {tokens, keyTokens} = this.source;
    if (q === null && k === null) return this.say("unlocked");
    const [l, h] = headOf(this.state.current.a);
    let weight = "";
    if (q !== null && k !== null && this.source.hasRows(l, h)) {
      try {
        const found = this.rows(this.state.current.w).weight(l, h, q, k);
        weight = typeof found === "number" ? `, weight ${told(found)}` : `, ${found}`;
      } catch (error) {
        if (!(error instanceof DataError)) throw error;
      }
    }
    return this.say(`locked: ${q === null ? "" : `query ${tokens.named(q)}`}${q !== null && k !== null ? ", " : ""}`
      + `${k === null ? "" : `key ${keyTokens.named(k)}`}${weight}`);
  }

  /** A window that does not show what is locked moves there. */
  inView(q, k) {
    const {z} = this.state.current;
    if (z === "0" || (q === null && k === null)) return {};
    const {q0, k0, qn, kn} = windowOf(this.state.current, this.source);
    const query = q ?? q0 + Math.floor(qn / 2), key = k ?? k0 + Math.floor(kn / 2);
    const shown = query >= q0 && query < q0 + qn && key >= k0 && key < k0 + kn;
    return shown ? {} : {z: windowAround(this.source, query, key, Math.max(qn, kn))};
  }

  say(text) {
    this.live.textContent = text;
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || this.keys.open) return;
    const target = event.composedPath()[0];
    if (/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) && event.key.length === 1) return;
    const {state} = this, {current} = state;
    const does = {
      Escape: () => this.lock(null, null),
      "[": () => state.set({a: this.neighbour(-1)}),
      "]": () => state.set({a: this.neighbour(1)}),
      t: () => this.toggleTheme(),
      x: () => state.set({w: current.w === "nofirst" ? "raw" : "nofirst"}),
      c: () => this.compare(),
      "?": () => this.keys.showModal(),
    }[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!does) return;
    does();
    event.preventDefault();
  }

  /** C: the head that is pointed at becomes B; elsewhere the way to the comparison. */
  compare() {
    const view = this.views.get(this.state.current.v);
    if (view instanceof HeadsView && view.pointed !== null) view.second(view.pointed);
    else this.state.set({v: "compare"});
  }

  neighbour(by) {
    const {source} = this, count = source.layers * source.heads;
    const at = (source.index(...headOf(this.state.current.a)) + by + count) % count;
    this.say(`head ${Math.floor(at / source.heads)}.${at % source.heads}`);
    return `${Math.floor(at / source.heads)}.${at % source.heads}`;
  }

  resized() {
    const width = this.frame.clientWidth;
    if (width === this.width || width === 0) return;
    this.width = width;
    this.update(this.state.current, this.state.current);
  }

  unmount() {
    this.state.stop();
    this.observer.disconnect();
    this.preferred.removeEventListener("change", this.onTheme);
    document.removeEventListener("keydown", this.onKey);
    this.frame.remove();
  }
}

/** Shows `source` in `root`, under a shadow root of its own. */
function mount(root, source) {
  const shadow = root.shadowRoot ?? root.attachShadow({mode: "open"});
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(STYLE);
  shadow.adoptedStyleSheets = [sheet];
  shadow.replaceChildren();
  return new App(shadow, source);
}
