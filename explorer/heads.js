// View "Heads": which heads stand out?

const kRankedFirst = 60;

class HeadsView {
  constructor(app) {
    Object.assign(this, {app, source: app.source, all: false, pointed: null, made: new Map(), allMade: new Set()});
    const set = (key) => (value) => app.state.set({[key]: value});
    this.arrange = new Choice("Arrange", [["layer", "by layer"], ["ranked", "ranked"]], set("r"));
    this.measure = new Choice("Measure", kMeasures.map(([id, title]) => [id, title]), set("m"));
    this.cells = new Choice("Cells show", [["maps", "maps"], ["values", "values"]], set("c"));
    this.mode = new Choice("Weights", app.state.modes(), set("w"));
    this.chips = el("div", {class: "chips", role: "group", "aria-label": "Role in this text"});
    this.rule = el("p", {class: "hint rule"});
    this.progress = el("span", {class: "hint", role: "status"});
    this.grid = new HeadGrid(this.source, {point: (head) => this.point(head), open: (head) => this.open(head),
      second: (head) => this.second(head)});
    this.more = el("button", {on: {click: () => {
      this.all = true;
      this.update(app.state.current);
    }}});
    this.dock = new Dock(this.source, (l, h, q, k) => app.state.set({v: "head", a: `${l}.${h}`, q, k, z: "0"}));
    this.main = el("div", {class: "heads-main"}, this.grid.element, this.more);
    this.body = el("div", {class: "heads-body"}, this.main, this.dock.element);
    this.table = el("details", {class: "as-table"}, el("summary", {}, "All heads as a table"));
    this.table.addEventListener("toggle", () => this.fillTable());
    this.element = el("div", {}, el("div", {class: "controls"}, this.arrange.element, this.measure.element,
      this.cells.element, this.mode.element, this.progress), this.chips, this.rule, this.body,
    el("p", {class: "caveat"}, "A weight says how much of a value is mixed in, not why the model answered. "
      + "Roles are rules on this text."), this.table);
  }

  update(state) {
    const {app, source} = this, {measures} = app;
    for (const [choice, key] of [[this.arrange, "r"], [this.measure, "m"], [this.cells, "c"], [this.mode, "w"]]) {
      choice.set(state[key]);
    }
    this.drawChips(state);
    if (!this.making) replace(this.progress);
    if (state.m === "link") this.measureLink(state);
    const [, title, , rule] = ruleOf(state.m), shown = this.pointed ?? source.index(...headOf(state.a));
    const chance = measures.chance(state.m, shown);
    replace(this.rule, `${title}: ${rule}`, state.m === "link" && state.q !== null && state.k !== null
      ? [": ", tokenName(source.tokens, state.q), " → ", tokenName(source.keyTokens, state.k)] : null,
    chance === null ? "" : ` · equal weights would give ${chance.toFixed(2)}`,
    measures.values.get(state.m)?.known.length ? null : el("b", {}, state.m === "link"
      ? " · choose a link in One head" : " · not measurable in this text"));
    this.drawGrid(state);
    this.drawDock(shown);
    this.table.open = false;
  }

  measureLink(state) {
    const {app} = this;
    if (state.q === null || state.k === null) app.measures.dropLink();
    else orTrouble(this.progress, () => app.measures.setLink(app.rows(state.w), state.q, state.k));
  }

  drawChips(state) {
    const counts = new Map();
    for (const role of this.source.meta.roles) counts.set(role, (counts.get(role) ?? 0) + 1);
    const chip = ([id, letter, title, rule]) => el("button", {class: "chip", title: rule, dataset: {role: id},
      "aria-pressed": String(state.role === id), on: {
        click: () => this.app.state.set({role: this.app.state.current.role === id ? null : id})}},
    letter ? [el("span", {class: "sign", "aria-hidden": "true"}, letter), " "] : null, el("b", {}, title),
    ` ${counts.get(id)}`);
    const focused = this.chips.getRootNode().activeElement?.dataset?.role;
    replace(this.chips, el("span", {class: "hint"}, "Role in this text:"),
      kRoles.filter(([id]) => counts.has(id)).map(chip));
    if (focused) this.chips.querySelector(`[data-role="${focused}"]`)?.focus();
  }

  drawGrid(state) {
    const {app, source} = this, ranked = state.r === "ranked";
    const order = ranked ? app.measures.ranked(state.m)
      .filter((head) => state.role === null || source.meta.roles[head] === state.role) : null;
    const shown = order && !this.all ? order.slice(0, kRankedFirst) : order;
    this.body.classList.toggle("beside", ranked);
    this.more.hidden = !order || shown.length === order.length;
    this.more.textContent = order ? `show all ${order.length}` : "";
    this.show = {order: shown, measure: state.m, cells: state.c, role: ranked ? null : state.role, a: state.a,
      b: state.b, coloursOf: this.colours(state)};
    this.grid.draw(app.measures, this.show, app.scales, this.main.clientWidth || app.width);
    if (state.w !== "raw") this.makeThumbnails(state.w);
  }

  /** Thumbnails come with the file for weights as they are; for other modes they are made, a layer at a time. Heads
      without rows keep the file's. */
  colours(state) {
    const {app, source} = this, scale = app.scales.weights;
    if (state.w === "raw") return (l, h) => rootColours(source.thumbnail(l, h), scale);
    return (l, h) => rootColours(this.made.get(`${state.w} ${l}.${h}`) ?? source.thumbnail(l, h), scale);
  }

  makeThumbnails(mode, layer = 0) {
    const {source, app} = this, [most] = source.meta.thumbs, {current} = app.state;
    if (layer === 0 && (this.making === mode || this.allMade.has(mode))) return;
    this.making = mode;
    const failed = !orTrouble(this.progress, () => {
      for (let h = 0; layer < source.layers && h < source.heads; h++) {
        if (!source.hasRows(layer, h)) continue;
        const {values} = binned(app.rows(mode), layer, h, {q0: 0, k0: 0, qn: source.nq, kn: source.nk}, most);
        this.made.set(`${mode} ${layer}.${h}`, Uint8Array.from(values, (w) => scaleIndex(w, false)));
      }
    });
    if (current.w !== mode || failed || layer >= source.layers) {
      if (this.making === mode) this.making = null;
      if (layer >= source.layers) this.allMade.add(mode);
      if (!failed) replace(this.progress);
      if (current.v === "heads" && current.w === mode) this.grid.paint(app.measures, this.show, app.scales);
      return;
    }
    replace(this.progress, `layer ${layer + 1} of ${source.layers}`);
    setTimeout(() => this.makeThumbnails(mode, layer + 1));
  }

  point(head) {
    if (head === null || head === this.pointed) return;
    this.pointed = head;
    this.drawDock(head);
  }

  drawDock(head) {
    this.dock.draw(this.app.measures, this.app.rows(this.app.state.current.w), head, this.app.scales,
      this.app.state.current.s === "linear");
  }

  name(head) {
    return `${Math.floor(head / this.source.heads)}.${head % this.source.heads}`;
  }

  open(head) {
    this.app.state.set({v: "head", a: this.name(head)});
  }

  second(head) {
    this.app.state.set({b: this.name(head)});
    this.app.say(`Head ${this.name(head)} is B of the comparison`);
  }

  fillTable() {
    if (!this.table.open) return;
    const {measures} = this.app, ids = kMeasures.filter(([id]) => id !== "link");
    const rows = this.source.meta.roles.map((_, head) => [this.name(head), measures.role(head)[2],
      ...ids.map(([id]) => measures.text(id, head))]);
    replace(this.table, this.table.firstChild, el("div", {class: "wide-table", tabindex: "0", role: "region",
      "aria-label": "All heads"}, table("All heads", [["head", ""], ["role", ""],
      ...ids.map(([, title]) => [title, "number"])], rows)));
  }
}
