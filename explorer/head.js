// View "One head": what does one head do over the text, where does a token look, who looks at it?

const kZooms = [["0", "all"], ["256", "256 tokens"], ["128", "128 tokens"], ["64", "64 tokens"], ["32", "32 tokens"]];

class HeadView {
  constructor(app) {
    Object.assign(this, {app, source: app.source});
    const {source} = this, set = (key) => (value) => app.state.set({[key]: value});
    this.head = new HeadChoice(source, "Head", set("a"));
    this.mode = new Choice("Weights", app.state.modes(), set("w"));
    this.scale = new Choice("Colour", [["sqrt", "square root"], ["linear", "linear"]], set("s"));
    const most = Math.max(source.nq, source.nk);
    this.zoom = new Choice("Zoom", kZooms.filter(([n]) => n < most).map(([n, title]) => [n, n === "0"
      ? `all ${most} token${most === 1 ? "" : "s"}` : title]).concat([["own", "a part"]]), (n) => this.setZoom(Number(n)));
    this.legend = el("span", {class: "legend-place"});
    this.map = new HeadMap(source, {point: (q, k) => this.point(q, k), lock: (q, k) => this.lock(q, k),
      zoom: (z) => app.state.set({z})});
    this.axes = el("p", {class: "axes"}, el("span", {class: "of-query"}, "query (attends) ↓"),
      el("span", {class: "of-key"}, "key (is attended to) →"), this.step = el("span", {class: "hint"}));
    this.line = el("p", {class: "pair"});
    this.direction = new Choice("Show", [["out", "where the token looks"], ["in", "who looks at it"]], set("d"));
    this.direction.element.firstChild.className = "unseen";
    this.locked = el("button", {class: "locked", "aria-pressed": "true", on: {click: () => this.unlock()}});
    this.steps = el("button", {on: {click: () => app.state.set({v: "query"})}}, "step by step");
    this.which = el("button", {on: {click: () => app.state.set({v: "heads", m: "link"})}});
    this.prose = new Prose(source.tokens, this.proseEvents("q"), source.cross ? "The text that attends" : "The text");
    this.keyProse = source.cross ? new Prose(source.keyTokens, this.proseEvents("k"), "The text attended to") : null;
    this.keys = el("div", {class: "keys"});
    this.measures = new MeasureTable(app.measures);
    this.small = new SmallHeads(source, (a) => app.state.set({a}));
    this.smallTitle = el("h2", {});
    this.mapPlace = el("div", {class: "map-place"}, this.axes, this.map.element, this.line, this.mapTable());
    this.side = el("div", {class: "side"},
      el("div", {class: "controls"}, this.direction.element, this.locked, this.steps, this.which),
      this.prose.element, this.keyProse?.element,
      el("div", {class: "facts"}, this.keys, el("div", {class: "measures"}, this.measures.element, this.smallTitle,
        this.small.element)));
    this.message = el("div", {});
    this.element = el("div", {}, el("div", {class: "controls"}, this.head.element, this.mode.element,
      this.scale.element, this.zoom.element, this.legend), this.message,
    el("div", {class: "head-body"}, this.mapPlace, this.side),
    el("p", {class: "caveat"}, "A weight says how much of a value is mixed in, not why the model answered. "
      + "The square-root scale makes small weights look larger."));
  }

  proseEvents(part) {
    const link = (i) => {
      if (i === null) return [null, null];
      return part === "k" || (!this.source.cross && this.app.state.current.d === "in") ? [null, i] : [i, null];
    };
    return {point: (i) => this.pointToken(i, ...link(i)), lock: (i) => this.lockToken(...link(i))};
  }

  mapTable() {
    this.rowsTable = el("details", {class: "as-table"}, el("summary", {}, "The row as a table"));
    this.rowsTable.addEventListener("toggle", () => this.fillRowTable());
    return this.rowsTable;
  }

  get rows() {
    return this.app.rows(this.app.state.current.w);
  }

  update(state) {
    const {app, source} = this, [l, h] = headOf(state.a), index = source.index(l, h);
    Object.assign(this, {l, h, pointed: null});
    this.prose.laidOut();
    this.keyProse?.laidOut();
    this.head.set(state.a, app.measures);
    this.mode.set(state.w);
    this.scale.set(state.s);
    this.direction.set(state.d);
    this.setZoomChoice(state.z === "0" ? "0" : state.z.split(",")[2]);
    replace(this.legend, legend(app.scales.weights, state.s === "linear"));
    this.measures.draw(index, `Measures of head ${state.a}; bar: this head, tick: median`);
    const [, title] = ruleOf(app.measures.values.has(state.m) ? state.m : "ind");
    replace(this.smallTitle, `All heads, by ${title}`);
    const room = this.small.element.parentNode.clientWidth || 300;
    this.small.draw(app.measures, app.measures.values.has(state.m) ? state.m : "ind", app.scales.weights, state.a, room);
    replace(this.message);
    const good = orTrouble(this.message, () => {
      this.drawMap(state);
      this.show(state.q, state.k);
    });
    this.element.classList.toggle("broken", !good);
    this.drawLock(state);
    this.rowsTable.open = false;
    if (good && this.lockedAt !== `${state.q} ${state.k}`) {
      this.lockedAt = `${state.q} ${state.k}`;
      this.prose.keepInView(state.d === "out" || source.cross ? state.q : state.k);
    }
  }

  drawMap(state) {
    const {app, source, l, h} = this, window = windowOf(state, source);
    this.map.element.hidden = this.axes.hidden = !source.isKnown(l, h);
    this.rowsTable.hidden = !source.hasRows(l, h);
    if (!source.hasRows(l, h)) {
      replace(this.message, el("p", {class: "trouble"}, source.absence(l, h), source.isKnown(l, h)
        ? " Its map shows the largest weight of each block, as it is." : null));
    }
    if (!source.isKnown(l, h)) return;
    const room = this.mapPlace.clientWidth || app.width;
    const bins = binned(this.rows, l, h, window, Math.round(room * Math.min(devicePixelRatio, 3)));
    this.map.draw({layer: l, window, binned: bins, title: `Map of head ${state.a}: queries down, keys across`,
      colours: (values) => weightColours(values, app.scales.weights, state.s === "linear")}, app.scales,
    Math.min(room, 760));
    this.step.textContent = this.map.step > 1 ? `(1 label in ${this.map.step})` : "";
  }

  drawLock(state) {
    const {source} = this;
    const at = state.d === "in" && !source.cross ? state.k ?? state.q : state.q ?? state.k;
    const tokens = at === state.q && state.q !== null ? source.tokens : source.keyTokens;
    this.locked.hidden = at === null;
    if (at !== null) replace(this.locked, "locked: ", tokenName(tokens, at), " ✕");
    this.locked.setAttribute("aria-label", at === null ? "nothing is locked" : `locked: ${tokens.named(at)}; unlock`);
    const link = state.q !== null && state.k !== null;
    this.which.hidden = !link;
    if (link) {
      replace(this.which, "which heads link ", tokenName(source.tokens, state.q), " → ",
        tokenName(source.keyTokens, state.k), "?");
    }
  }

  /** "A part" is what the wheel leaves: shown where it is so, and nothing to choose. */
  setZoomChoice(n) {
    const options = [...this.zoom.select.options], own = !options.some((o) => o.value === n);
    options.at(-1).disabled = !own;
    this.zoom.set(own ? "own" : n);
  }

  setZoom(n) {
    const {app, source} = this, {q, k} = app.state.current;
    const query = q ?? source.nq - 1, key = k ?? Math.min(query, source.nk - 1);
    app.state.set({z: n === 0 ? "0" : windowAround(source, query, key, n)});
  }

  /** The pair that is shown: what is pointed at, else what is locked. */
  point(query, key, byKey = false) {
    const {q, k} = this.app.state.current;
    if (byKey) this.map.element.dataset.keys = "1";
    if (query === null && key === null) this.preview(q, k);
    else this.preview(query, key);
  }

  pointToken(i, query, key) {
    const {q, k, d} = this.app.state.current, [from, to] = this.source.range(this.l, q ?? 0);
    if (i === null) this.preview(q, k);
    else if (d === "out" && q !== null && query !== null && !this.source.cross && i >= from && i < to) {
      this.preview(q, i);  // with a locked query, other tokens are its keys
    } else this.preview(query, key);
    this.prose.mark("pointed", query === null && this.source.cross ? null : i);
  }

  preview(query, key) {
    if (this.pointed && this.pointed[0] === query && this.pointed[1] === key) return;
    this.pointed = [query, key];
    orTrouble(this.message, () => this.show(query, key));
  }

  lockToken(query, key) {
    const {q, k} = this.app.state.current;
    if (query !== null) this.app.lock(query === q ? null : query, null);
    else this.app.lock(this.source.cross ? q : null, key === k ? null : key);
  }

  lock(query, key) {
    const {q, k} = this.app.state.current;
    if (query === q && key === k) this.unlock();
    else this.app.lock(query, key);
  }

  unlock() {
    this.app.lock(null, null);
  }

  /** Shades, numbers, outlines, the line below the map and the table of keys for a pair; either may be null. */
  show(query, key) {
    const {source, app} = this, {d, s} = app.state.current, linear = s === "linear";
    this.map.point(query, key);
    const out = query !== null && (d === "out" || key === null);
    const text = source.cross && !out ? this.prose : this.keyProse ?? this.prose;
    if (!source.hasRows(this.l, this.h)) return this.showNothing("Without rows there is nothing to show of a token.");
    if (query === null && key === null) return this.showNothing();
    const row = out ? this.rows.row(this.l, this.h, query) : {weights: column(this.rows, this.l, this.h, key), rest: 0};
    const listed = largest(row.weights, 200);
    if (this.keyProse) (text === this.prose ? this.keyProse : this.prose).shade([], app.scales.weights, linear);
    text.shade(listed, app.scales.weights, linear);
    const fadeFrom = source.causal && !source.cross && out ? query + source.offset + 1 : null;
    this.prose.fade(fadeFrom);
    this.prose.mark("asks", query);
    (this.keyProse ?? this.prose).mark("given", key);
    this.showPair(query, key);
    this.listKeys(query, key, row, listed, out);
  }

  showNothing(why = null) {
    const {app} = this;
    for (const text of [this.prose, this.keyProse]) {
      text?.shade([], app.scales.weights, false);
      text?.mark("asks", null);
      text?.mark("given", null);
    }
    this.prose.fade(null);
    replace(this.line, why ? "" : el("span", {class: "hint"}, "Point at the map or the text; click to lock."));
    replace(this.keys, el("p", {class: "hint"}, why ?? "No token is chosen."));
  }

  showPair(query, key) {
    const {source} = this, pair = query !== null && key !== null;
    replace(this.line, query === null ? "any" : tokenName(source.tokens, query), " → ",
      key === null ? "…" : tokenName(source.keyTokens, key),
      pair ? [": ", el("b", {}, told(this.rows.weight(this.l, this.h, query, key)))] : "");
  }

  listKeys(query, key, row, listed, out) {
    const {source} = this, tokens = out ? source.keyTokens : source.tokens;
    const shown = listed.slice(0, 12), at = out ? query : key;
    const [from, to] = out ? source.range(this.l, query) : [0, source.nq];
    let others = row.rest;
    for (const w of row.weights) others += w;
    for (const [, w] of shown) others -= w;
    const count = Math.max(0, (out ? to - from : this.seers(key)) - shown.length);
    const sparse = source.form(this.l, this.h) === "s", sum = Math.max(0, others).toFixed(3);
    const rest = row.little ? kTooLittle : out ? sum : `Σ ${sparse ? "≥ " : ""}${sum}`;
    const pick = (i) => el("button", {class: "plain", on: {click: () => this.lock(out ? query : i, out ? i : key)}},
      tokenName(tokens, i));
    const name = tokenName(out ? source.tokens : source.keyTokens, at);
    replace(this.keys, el("h2", {}, out ? "query " : "key ", name),
      table(out ? "keys by weight" : "queries by weight", [[out ? "key" : "query", ""], ["weight", "number"]],
        [...shown.map(([i, w]) => [pick(i), w.toFixed(3)]),
          [`the other ${count}`, rest]]),
      out ? null : el("p", {class: "hint"}, "Weights of different queries need not sum to 1."
        + (sparse ? ` Links under ${source.meta.tau} may be missing.` : "")));
  }

  /** How many queries may see a key. */
  seers(key) {
    let count = 0;
    for (let i = 0; i < this.source.nq; i++) {
      const [from, to] = this.source.range(this.l, i);
      if (key >= from && key < to) count++;
    }
    return count;
  }

  fillRowTable() {
    if (!this.rowsTable.open) return;
    const {source} = this, {q} = this.app.state.current, query = q ?? source.nq - 1;
    orTrouble(this.message, () => {
      const row = this.rows.row(this.l, this.h, query), [from, to] = source.range(this.l, query), rows = [];
      for (let j = from; j < to && rows.length < 1000; j++) {
        const weight = this.rows.at(this.l, query, j, row);
        if (typeof weight === "number") rows.push([tokenName(source.keyTokens, j), weight.toFixed(4)]);
      }
      if (row.rest > 0) rows.push(["keys not kept", row.rest.toFixed(4)]);
      if (row.little) rows.push(["keys but the first", kTooLittle]);
      replace(this.rowsTable, this.rowsTable.firstChild, el("div", {class: "tall-table", tabindex: "0", role: "region",
        "aria-label": "The row"}, table(`Weights of query ${source.tokens.named(query)}`, [["key", ""],
        ["weight", "number"]], rows, {visibleCaption: true})));
    });
  }
}
