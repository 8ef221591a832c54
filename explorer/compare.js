// View "Compare two": A, B and A − B side by side, with one cross-hair.

class CompareView {
  constructor(app) {
    Object.assign(this, {app, source: app.source, shown: "a"});
    const {source} = this, set = (key) => (value) => app.state.set({[key]: value});
    this.a = new HeadChoice(source, "A", set("a"));
    this.b = new HeadChoice(source, "B", set("b"));
    this.mode = new Choice("Weights", app.state.modes(), set("w"));
    this.swap = el("button", {on: {click: () => app.state.set({a: app.state.current.b, b: app.state.current.a})}}, "swap");
    const on = {point: (q, k) => this.point(q, k), lock: (q, k) => this.lock(q, k), zoom: (z) => app.state.set({z})};
    this.maps = ["a", "b", "d"].map(() => new HeadMap(source, on, {labels: false}));
    this.titles = ["a", "b", "d"].map((side) => el("h2", {class: `side-${side}`}));
    this.absences = this.maps.map(() => el("p", {class: "hint"}));
    this.figures = this.maps.map((map, n) => el("figure", {dataset: {side: "abd"[n]}}, el("figcaption", {}, this.titles[n]),
      map.element, this.absences[n]));
    this.switch = el("div", {class: "switch", role: "group", "aria-label": "Map shown"}, [["a", "A"], ["b", "B"],
      ["d", "A − B"]].map(([side, title]) => el("button", {dataset: {side}, on: {click: () => {
      this.shown = side;
      this.update(app.state.current);
    }}}, title)));
    this.legends = el("div", {class: "legends"});
    this.line = el("p", {class: "pair"});
    this.prose = new Prose(source.keyTokens, {point: (i) => this.pointToken(i), lock: (i) => this.lockToken(i)},
      "The text; blue bars A, orange bars B");
    this.bars = new TwinBars(this.prose);
    this.locked = el("button", {class: "locked", "aria-pressed": "true", on: {click: () => app.lock(null, null)}});
    this.keys = el("div", {class: "keys"});
    this.differ = el("div", {});
    this.message = el("div", {});
    this.figuresPlace = el("div", {class: "figures"}, this.figures);
    this.element = el("div", {}, el("div", {class: "controls"}, this.a.element, this.swap, this.b.element,
      this.mode.element), this.message, this.switch, this.figuresPlace, this.legends,
    el("div", {class: "controls"}, this.locked, this.line), this.prose.element,
    el("div", {class: "facts"}, this.keys, this.differ),
    el("p", {class: "caveat"}, "Two heads that look alike need not do the same: their values differ."));
  }

  get rows() {
    return this.app.rows(this.app.state.current.w);
  }

  update(state) {
    const {app} = this;
    const heads = [headOf(state.a), headOf(state.b)];
    Object.assign(this, {heads, pointed: null, wide: this.source.wider(heads[0][0], heads[1][0])});
    this.a.set(state.a, app.measures);
    this.b.set(state.b, app.measures);
    this.mode.set(state.w);
    const narrow = app.width < 700;
    this.switch.hidden = !narrow;
    for (const button of this.switch.children) button.setAttribute("aria-pressed", String(button.dataset.side === this.shown));
    this.figures.forEach((figure) => { figure.hidden = narrow && figure.dataset.side !== this.shown; });
    [`A: head ${state.a}`, `B: head ${state.b}`, "A − B"].forEach((text, n) => replace(this.titles[n], text));
    replace(this.message);
    orTrouble(this.message, () => {
      this.drawMaps(state, narrow);
      this.show(state.q, state.k);
      this.listDiffering(state);
    });
    this.locked.hidden = state.q === null;
    if (state.q !== null) {
      replace(this.locked, "locked: ", tokenName(this.source.tokens, state.q), " ✕");
      this.locked.setAttribute("aria-label", `locked: ${this.source.tokens.named(state.q)}; unlock`);
    }
  }

  drawMaps(state, narrow) {
    const {app, heads} = this, window = windowOf(state, this.source), linear = state.s === "linear";
    const room = narrow ? app.width - 32 : Math.floor((app.width - 40 - 2 * 20) / 3);
    const size = Math.min(room, 560), most = Math.round(size * Math.min(devicePixelRatio, 3));
    const [a, b] = heads.map(([l, h]) => binned(this.rows, l, h, window, most));
    const plain = (values) => weightColours(values, app.scales.weights, linear);
    const pictures = [[a, heads[0][0], plain, `Map of A, head ${state.a}`], [b, heads[1][0], plain,
      `Map of B, head ${state.b}`], [a, this.wide, (v) => differenceColours(v, app.scales, linear), "Map of A minus B"]];
    const absences = this.absencesOf();
    pictures.forEach(([bins, layer, colours, title], n) => {
      replace(this.absences[n], absences[n]);
      this.maps[n].element.hidden = absences[n] !== null;
      if (!this.isDrawn(n)) return;
      const shown = n < 2 ? bins : {...a, values: a.values.map((x, at) => x - b.values[at])};
      this.maps[n].draw({binned: shown, layer, window, colours, title}, app.scales, size);
    });
    const named = (name, bar) => el("div", {class: "named"}, el("span", {class: "hint"}, name), bar);
    replace(this.legends, named("weight", legend(app.scales.weights, linear)),
      named("A larger", legend(app.scales.a, linear, 110)), named("B larger", legend(app.scales.b, linear, 110)));
  }

  /** Of A, B and A − B: why there is no map, or null. Differences take rows: two blocks' largest weights say nothing. */
  absencesOf() {
    const {source, heads} = this, without = heads.filter(([l, h]) => !source.hasRows(l, h));
    const missing = heads.map(([l, h]) => (source.isKnown(l, h) ? null : source.absence(l, h)));
    return [...missing, without.length ? `No difference. ${source.absence(...without[0])}` : null];
  }

  isDrawn(n) {
    return !this.figures[n].hidden && !this.maps[n].element.hidden;
  }

  point(query, key) {
    const {q, k} = this.app.state.current;
    if (query === null) this.preview(q, k);
    else this.preview(query, key);
  }

  pointToken(i) {
    const {q, k} = this.app.state.current;
    if (i === null) this.preview(q, k);
    else if (q !== null || this.source.cross) this.preview(q, i);
    else this.preview(i, null);
    this.prose.mark("pointed", i);
  }

  preview(query, key) {
    if (this.pointed?.[0] === query && this.pointed?.[1] === key) return;
    this.pointed = [query, key];
    orTrouble(this.message, () => this.show(query, key));
  }

  lock(query, key) {
    const {q, k} = this.app.state.current;
    this.app.lock(...(query === q && key === k ? [null, null] : [query, key]));
  }

  lockToken(i) {
    const {q} = this.app.state.current;
    if (this.source.cross) this.app.lock(q ?? 0, i);
    else this.app.lock(i === q ? null : i, null);
  }

  show(query, key) {
    const {source} = this;
    for (const [n, map] of this.maps.entries()) if (this.isDrawn(n)) map.point(query, key);
    this.prose.mark("given", key);
    this.prose.mark("asks", source.cross ? null : query);
    this.prose.fade(source.causal && !source.cross && query !== null ? query + source.offset + 1 : null);
    const both = this.heads.every(([l, h]) => source.hasRows(l, h));
    if (query === null || !both) {
      this.bars.draw([], [], false);
      replace(this.line, both ? el("span", {class: "hint"}, "Point at a map or the text; click to lock.") : "");
      replace(this.keys);
      return;
    }
    const [a, b] = this.heads.map(([l, h]) => {
      const row = this.rows.row(l, h, query);
      return {...row, layer: l, weights: row.weights.slice()};
    });
    this.bars.draw(a.weights, b.weights, this.app.state.current.s === "linear");
    const at = (x) => (key === null ? "" : told(this.rows.at(x.layer, query, key, x)));
    replace(this.line, tokenName(source.tokens, query), " → ", key === null ? "…" : tokenName(source.keyTokens, key),
      key === null ? "" : [": A ", el("b", {}, at(a)), ", B ", el("b", {}, at(b))]);
    this.listKeys(query, a, b);
  }

  listKeys(query, a, b) {
    const {source} = this, most = a.weights.map((x, j) => Math.max(x, b.weights[j]));
    const shown = largest(most, 12), sum = (x) => x.reduce((s, w) => s + w, 0);
    const rest = (x) => (x.little ? kTooLittle
      : Math.max(0, sum(x.weights) + x.rest - shown.reduce((s, [j]) => s + x.weights[j], 0)));
    const row = (name, x, y) => [name, told(x), told(y), differenceOf(x, y)];
    const at = (x, j) => this.rows.at(x.layer, query, j, x);
    const [from, to] = source.range(this.wide, query);
    replace(this.keys, el("h2", {}, "query ", tokenName(source.tokens, query)),
      table("keys by weight in A and B", [["key", ""], ["A", "number side-a"], ["B", "number side-b"], ["A − B", "number"]],
        [...shown.map(([j]) => row(tokenName(source.keyTokens, j), at(a, j), at(b, j))),
          row(`the other ${Math.max(0, to - from - shown.length)}`, rest(a), rest(b))]));
  }

  /** Rows that differ most: half the sum of |A − B|, 0 where equal, 1 where nothing is shared. */
  listDiffering(state) {
    const {source, heads} = this, name = `${state.a} ${state.b} ${state.w}`, reason = this.absencesOf()[2];
    if (this.differing?.name !== name) {
      const found = [];
      for (let i = 0; reason === null && i < source.nq; i++) {
        const a = this.rows.row(...heads[0], i), weights = a.weights.slice(), b = this.rows.row(...heads[1], i);
        if (a.little || b.little) continue;
        let sum = Math.abs(a.rest - b.rest);
        for (let j = 0; j < weights.length; j++) sum += Math.abs(weights[j] - b.weights[j]);
        found.push([i, sum / 2]);
      }
      this.differing = {name, rows: found.sort((x, y) => y[1] - x[1]).slice(0, 8)};
    }
    replace(this.differ, el("h2", {}, "Rows that differ most ", el("span", {class: "hint"}, "½ Σ |A − B|")),
      reason ? el("p", {class: "hint"}, reason) : table("Rows that differ most", [["query", ""], ["difference", "number"]],
        this.differing.rows.map(([i, x]) => [el("button", {class: "plain", on: {click: () => this.app.lock(i, null)}},
          tokenName(source.tokens, i)), x.toFixed(3)])));
  }
}

/** What cannot be seen weighs nothing; of what was not kept there is no difference. */
function differenceOf(...pair) {
  const [a, b] = pair.map((x) => (x === kHidden ? 0 : x));
  return typeof a === "number" && typeof b === "number" ? signed(a - b) : "";
}

const signed = (x) => (x < -0.0005 ? "−" : x > 0.0005 ? "+" : "") + Math.abs(x).toFixed(3);
