// The map of one head: queries down, keys across. The picture is drawn once a head; pointing only moves outlines.

const kLabelRoom = {wide: [92, 84], narrow: [64, 62]};

/** Window of the map from the state's z: "0" is everything. */
function windowOf(state, source) {
  if (state.z === "0") return {q0: 0, k0: 0, qn: source.nq, kn: source.nk};
  const [q0, k0, n] = state.z.split(",").map(Number);
  const qn = clamp(n, 1, source.nq), kn = clamp(n, 1, source.nk);
  return {q0: clamp(q0, 0, source.nq - qn), k0: clamp(k0, 0, source.nk - kn), qn, kn};
}

/** A window of n tokens around a query and a key, each where it fits. */
function windowAround(source, query, key, n) {
  if (n >= source.nq && n >= source.nk) return "0";
  const start = (at, all) => clamp(Math.round(at - n / 2), 0, Math.max(0, all - n));
  return `${start(query, source.nq)},${start(key, source.nk)},${n}`;
}

class HeadMap {
  /** on: {point(q, k) or point(null), lock(q, k), zoom(z)}. `labels` false: a bare square. */
  constructor(source, on, {labels = true} = {}) {
    Object.assign(this, {source, on, labels});
    this.canvas = el("canvas", {role: "img"});
    this.row = el("div", {class: "outline query"});
    this.column = el("div", {class: "outline key"});
    this.rowLabel = el("div", {class: "axis-label query", "aria-hidden": "true"});
    this.columnLabel = el("div", {class: "axis-label key", "aria-hidden": "true"}, el("span", {}));
    this.note = el("div", {class: "unseen-note", "aria-hidden": "true"}, "after the query: cannot be seen");
    this.element = el("div", {class: "map", tabindex: "0", role: "application",
      "aria-roledescription": "map of weights", on: {
        pointermove: (e) => this.moved(e), pointerleave: () => this.leave(), pointerdown: (e) => this.pressed(e),
        pointerup: (e) => this.released(e), wheel: (e) => this.wheel(e), keydown: (e) => this.key(e)}},
    this.canvas, this.note, this.column, this.row, this.columnLabel, this.rowLabel);
    this.element.addEventListener("wheel", () => {}, {passive: false});
  }

  /** picture: {layer, window, binned: {bq, bk, values}, colours(values), title}. */
  draw(picture, scales, width) {
    const {source} = this, {window} = picture;
    const [left, top] = this.labels ? kLabelRoom[width < 520 ? "narrow" : "wide"] : [0, 0];
    const most = Math.max(40, width - left - 2), n = Math.max(window.qn, window.kn);
    const cell = most / n < 4 ? most / n : Math.min(Math.floor(most / n), 64);
    Object.assign(this, {picture, left, top, cell, width: cell * window.kn, height: cell * window.qn});
    const ratio = sizeCanvas(this.canvas, left + this.width + 1, top + this.height + 1);
    const context = this.canvas.getContext("2d");
    const {bq, bk, values} = picture.binned;
    const size = {width: Math.max(1, Math.round(this.width * ratio)), height: Math.max(1, Math.round(this.height * ratio))};
    const seen = seenBins(source, picture.layer, window, bq, bk);
    const image = mapImage(bq, bk, size, seen, scales.unseen, picture.colours(values));
    context.putImageData(image, Math.round(left * ratio), Math.round(top * ratio));
    context.scale(ratio, ratio);
    if (cell < 2) this.enlarge(context, bq, bk, values, seen);
    if (this.labels) this.drawLabels(context, getComputedStyle(this.element));
    if (this.lineOf !== scales) {  // asking for a style in the midst of changes costs a recalculation
      Object.assign(this, {lineOf: scales, line: getComputedStyle(this.element).getPropertyValue("--line")});
    }
    context.strokeStyle = this.line;
    context.strokeRect(left + 0.5, top + 0.5, this.width, this.height);
    this.canvas.setAttribute("aria-label", picture.title);
    this.element.setAttribute("aria-label", `${picture.title}. Arrows move, Enter locks, plus and minus zoom.`);
    this.placeNote();
    this.point(null, null);
  }

  /** Where cells are too small to see, weights from .15 on are three pixels wide. */
  enlarge(context, bq, bk, values, seen) {
    const colours = this.picture.colours(values);
    for (let at = 0; at < values.length; at++) {
      if (!seen[at] || !(colours.weight(at) >= 0.15)) continue;
      const pixel = colours.pixel(at);
      context.fillStyle = `rgb(${pixel & 255} ${pixel >> 8 & 255} ${pixel >> 16 & 255})`;
      context.fillRect(this.left + (at % bk + 0.5) * this.width / bk - 1.5,
        this.top + (Math.floor(at / bk) + 0.5) * this.height / bq - 1.5, 3, 3);
    }
  }

  get step() {
    return Math.max(1, Math.ceil(13 / this.cell));
  }

  drawLabels(context, style) {
    const {source, left, top, cell, step} = this, {q0, k0, qn, kn} = this.picture.window;
    context.fillStyle = style.color;
    context.font = `12px ${style.fontFamily}`;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (let i = 0; i < qn; i += step) {
      context.fillText(source.tokens.short(q0 + i), left - 6, top + (i + 0.5) * cell, left - 8);
    }
    context.textAlign = "left";
    for (let j = 0; j < kn; j += step) {
      context.save();
      context.translate(left + (j + 0.5) * cell, top - 6);
      context.rotate(-Math.PI / 2);
      context.fillText(source.keyTokens.short(k0 + j), 0, 0, top - 8);
      context.restore();
    }
  }

  /** The note stands in the upper right corner where that cannot be seen. */
  placeNote() {
    const {window, layer} = this.picture;
    const hidden = this.source.causal && this.width > 280
      && this.source.range(layer, window.q0 + Math.floor(window.qn * 0.4))[1] < window.k0 + window.kn * 0.5;
    this.note.hidden = !hidden;
    this.note.textContent = this.width < 460 ? "cannot be seen" : "after the query: cannot be seen";
    this.note.style.left = `${this.left + this.width * 0.55}px`;
    this.note.style.top = `${this.top + this.height * 0.2}px`;
  }

  /** Outlines row and column; null hides one. */
  point(query, key) {
    if (!this.picture) return;
    const {left, top, cell, width, height} = this, {q0, k0, qn, kn} = this.picture.window;
    Object.assign(this, {query, keyAt: key});
    const place = (node, label, at, first, count, tokens, across) => {
      const shown = at !== null && at >= first && at < first + count;
      node.hidden = label.hidden = !shown || !width;
      if (!this.labels) label.hidden = true;
      if (!shown) return;
      const thick = Math.max(cell, 3), from = (at - first + 0.5) * cell - thick / 2;
      const box = across ? [left - 1, top + from - 1, width, thick] : [left + from - 1, top - 1, thick, height];
      ["left", "top", "width", "height"].forEach((side, n) => node.style.setProperty(side, `${box[n]}px`));
      if (across) label.style.top = `${top + (at - first + 0.5) * cell}px`;
      else label.style.left = `${left + (at - first + 0.5) * cell}px`;
      label.style.setProperty("--room", `${across ? left : top}px`);
      (across ? label : label.firstChild).textContent = tokens.short(at);
    };
    place(this.row, this.rowLabel, query, q0, qn, this.source.tokens, true);
    place(this.column, this.columnLabel, key, k0, kn, this.source.keyTokens, false);
  }

  /** The pair under the pointer, or null where there is none or it cannot be seen. */
  pairAt(event) {
    const box = this.canvas.getBoundingClientRect(), {window, layer} = this.picture;
    const x = (event.clientX - box.left - this.left) / this.cell, y = (event.clientY - box.top - this.top) / this.cell;
    if (x < 0 || y < 0 || x >= window.kn || y >= window.qn) return null;
    const query = window.q0 + Math.floor(y), key = window.k0 + Math.floor(x);
    const [from, to] = this.source.range(layer, query);
    return key >= from && key < to ? {query, key} : null;
  }

  moved(event) {
    if (this.drag && event.buttons) return this.dragged(event);
    const pair = this.pairAt(event);
    if (pair) this.on.point(pair.query, pair.key);
    else this.on.point(null, null);
  }

  leave() {
    this.on.point(null, null);
  }

  pressed(event) {
    this.drag = {x: event.clientX, y: event.clientY, window: this.picture.window, far: false};
  }

  dragged(event) {
    const {drag, source} = this, {qn, kn, q0, k0} = drag.window;
    const dx = event.clientX - drag.x, dy = event.clientY - drag.y;
    if (Math.hypot(dx, dy) > 5) drag.far = true;
    if (!drag.far || (qn === source.nq && kn === source.nk)) return;
    const q = clamp(q0 - Math.round(dy / this.cell), 0, source.nq - qn);
    const k = clamp(k0 - Math.round(dx / this.cell), 0, source.nk - kn);
    this.on.zoom?.(`${q},${k},${Math.max(qn, kn)}`);
  }

  released(event) {
    const far = this.drag?.far;
    this.drag = null;
    const pair = far ? null : this.pairAt(event);
    if (pair) this.on.lock(pair.query, pair.key);
  }

  wheel(event) {
    const pair = this.pairAt(event) ?? {query: this.query ?? 0, key: this.keyAt ?? 0};
    if (this.zoomBy(event.deltaY > 0 ? 1.25 : 0.8, pair)) event.preventDefault();
  }

  /** Whether there was anything left to zoom. */
  zoomBy(factor, {query, key}) {
    const {source} = this, {q0, k0, qn, kn} = this.picture.window, most = Math.max(source.nq, source.nk);
    const now = Math.max(qn, kn), next = clamp(Math.round(now * factor), Math.min(8, most), most);
    if (next === now || !this.on.zoom) return false;
    const start = (at, first, old, all) => clamp(Math.round(at - (at - first) * next / old), 0, Math.max(0, all - next));
    this.on.zoom(next === most ? "0" : `${start(query, q0, qn, source.nq)},${start(key, k0, kn, source.nk)},${next}`);
    return true;
  }

  key(event) {
    const moves = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]};
    const {source, picture: {layer, window}} = this;
    const query = this.query ?? window.q0 + window.qn - 1;
    const key = this.keyAt ?? source.range(layer, query)[1] - 1;
    if (moves[event.key] && !event.ctrlKey && !event.metaKey && !event.altKey) {
      const q = clamp(query + moves[event.key][0], 0, source.nq - 1), [from, to] = source.range(layer, q);
      if (to > from) this.on.point(q, clamp(key + moves[event.key][1], from, to - 1), true);
    } else if (event.key === "Enter" || event.key === " ") this.on.lock(query, key);
    else if (event.key === "+" || event.key === "=") this.zoomBy(0.5, {query, key});
    else if (event.key === "-") this.zoomBy(2, {query, key});
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
