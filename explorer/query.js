// View "One query": how did these numbers arise?

class QueryView {
  constructor(app) {
    Object.assign(this, {app, source: app.source, step: 0});
    const {source} = this;
    this.head = new HeadChoice(source, "Head", (a) => app.state.set({a}));
    this.query = new Choice("Query", Array.from({length: source.nq}, (_, i) => [i, source.tokens.named(i)]),
      (q) => app.lock(Number(q), null));
    this.back = el("button", {on: {click: () => this.move(-1)}}, "Back");
    this.next = el("button", {on: {click: () => this.move(1)}}, "Next");
    this.lesson = el("p", {class: "lesson", role: "status"});
    this.table = el("div", {class: "wide-table steps", tabindex: "0", role: "region", "aria-label": "The steps as a table"});
    this.vectors = el("div", {class: "vectors"});
    this.message = el("div", {});
    this.element = el("div", {}, el("div", {class: "controls"}, this.head.element, this.query.element, this.back,
      this.next), this.lesson, this.message, el("div", {class: "query-body"}, this.table, this.vectors),
    el("p", {class: "caveat"}, "Queries, keys and values are kept as 16-bit numbers, after rotation; weights made from "
      + "them agree with the model's within .003."));
  }

  update(state) {
    const [l, h] = headOf(state.a), query = state.q ?? this.source.nq - 1;
    this.head.set(state.a, this.app.measures);
    this.query.set(query);
    replace(this.message);
    orTrouble(this.message, () => this.draw(state, l, h, query));
  }

  move(by) {
    this.step += by;
    this.update(this.app.state.current);
  }

  draw(state, l, h, query) {
    const {source} = this, steps = stepsOfRow(source, l, h, query), names = stepsOfLayer(source, l);
    this.step = clamp(this.step, 0, names.length);
    const kept = source.hasRows(l, h) ? source.row(l, h, query) : null;
    const weights = steps ? steps.weight : kept?.weights;
    this.back.disabled = this.step === 0;
    this.next.disabled = this.step === names.length;
    replace(this.lesson, this.step === 0 ? "Back and Next walk through the steps of this row."
      : [el("b", {}, `${this.step} of ${names.length}: ${names[this.step - 1][1]}. `), names[this.step - 1][2]]);
    if (!weights) {
      replace(this.vectors);
      return replace(this.table, trouble(new DataError(source.absence(l, h))));
    }
    if (!steps) {
      replace(this.message, el("p", {class: "hint"}, "This file keeps no q, k and v of this head: what can be shown "
        + "are its weights and the sizes of its values."));
    }
    const shown = largest(weights, 10, 0).map(([j]) => j).filter((j) => weights[j] > 0);
    replace(this.table, this.stepTable(l, h, query, names, steps, kept, weights, shown));
    const key = state.k !== null && weights[state.k] > 0 ? state.k : shown[0];
    if (steps && key !== undefined) this.drawVectors(query, key, steps);
    else replace(this.vectors);
  }

  /** Columns: key, weight (second, for narrow screens), then the steps in order. */
  stepTable(l, h, query, names, steps, kept, weights, shown) {
    const {source} = this, norms = source.norms(l, h), [from, to] = source.range(l, query);
    const sums = {weight: 0, mixed: 0, exp: 0}, others = {weight: kept && !steps ? kept.rest : 0, mixed: 0, exp: 0};
    for (let j = from; j < to; j++) {
      const part = shown.includes(j) ? sums : others;
      part.weight += weights[j];
      part.mixed += weights[j] * norms[j];
      part.exp += steps ? steps.exp[j] : 0;
    }
    const cell = {product: (j) => steps.product[j].toFixed(3), scaled: (j) => (steps.product[j] * steps.scale).toFixed(3),
      capped: (j) => steps.score(j).toFixed(3), mask: () => "0", exp: (j) => steps.exp[j].toFixed(4),
      weight: (j) => weights[j].toFixed(4), size: (j) => norms[j].toFixed(3), mixed: (j) => (weights[j] * norms[j]).toFixed(4)};
    const ids = ["weight", ...names.map(([id]) => id).filter((id) => id !== "weight" && (steps || id === "size"
      || id === "mixed"))];
    const title = (id) => names.find((s) => s[0] === id)[1];
    const current = this.step ? names[this.step - 1][0] : null;
    const line = (name, values) => [name, ...ids.map((id) => values[id] ?? "")];
    // The others are known by their sum alone: each of them has a value of its own size.
    const mixed = (x) => (!steps && kept.rest > 0 ? "not kept" : x.mixed.toFixed(4));
    const fixed = (x) => ({weight: x.weight.toFixed(4), mixed: mixed(x), exp: steps ? x.exp.toFixed(4) : ""});
    const pick = (j) => el("button", {class: "plain", on: {click: () => this.app.lock(query, j)}},
      tokenName(source.keyTokens, j));
    const rows = shown.map((j) => line(pick(j), Object.fromEntries(ids.map((id) => [id, cell[id](j)]))));
    const left = to - from - shown.length, hidden = source.nk - (to - from);
    if (left > 0) rows.push(line(`${left} other key${left === 1 ? "" : "s"}`, fixed(others)));
    if (hidden > 0) rows.push(line(`${hidden} ${from > 0 ? "hidden" : "later"} key${hidden === 1 ? "" : "s"}`,
      {mask: "−∞", weight: "0", exp: steps ? "0" : ""}));
    rows.push(line("sum", fixed({weight: sums.weight + others.weight, mixed: sums.mixed + others.mixed,
      exp: sums.exp + others.exp})));
    return table(`Head ${l}.${h}, query ${source.tokens.named(query)}`, [["key", ""], ...ids.map((id) => [title(id),
      `number${id === current ? " current" : ""}`])], rows, {visibleCaption: true,
      rowProps: (n) => ({class: n === rows.length - 1 ? "total" : null})});
  }

  drawVectors(query, key, steps) {
    const {source, app} = this, {dim} = source, valueDim = source.meta.value_dim;
    const k = steps.k.subarray(key * dim, (key + 1) * dim), v = steps.v.subarray(key * valueDim, (key + 1) * valueDim);
    const product = Float32Array.from(steps.q, (x, c) => x * k[c]);
    replace(this.vectors, el("h2", {}, tokenName(source.tokens, query), " → ", tokenName(source.keyTokens, key)),
      vectorBars("query", steps.q, app.scales), vectorBars("key", k, app.scales),
      vectorBars("query × key, element by element", product, app.scales), vectorBars("value", v, app.scales),
      vectorBars("output: all values by their weights", steps.output, app.scales));
  }
}
