// All heads at once: one canvas with every map or value, and a button over each.

const kBar = 4;  // px, the bar of the measure below a cell

class HeadGrid {
  /** on: {point(head index or null), open(index), second(index)}. */
  constructor(source, on) {
    Object.assign(this, {source, on});
    this.canvas = el("canvas", {"aria-hidden": "true"});
    this.body = el("div", {class: "cells"});
    this.element = el("div", {class: "grid-scroll"}, el("div", {class: "grid-room"}, this.canvas, this.body));
    this.body.addEventListener("pointerover", (e) => this.over(e));
    this.body.addEventListener("pointerleave", () => on.point(null));
    this.body.addEventListener("focusin", (e) => this.over(e));
    this.body.addEventListener("click", (e) => this.clicked(e));
    this.body.addEventListener("keydown", (e) => this.key(e));
  }

  indexOf(event) {
    const button = event.target.closest?.(".cell");
    return button ? Number(button.dataset.head) : null;
  }

  over(event) {
    const head = this.indexOf(event);
    if (head !== null) this.on.point(head);
  }

  clicked(event) {
    const head = this.indexOf(event);
    if (head !== null) (event.shiftKey ? this.on.second : this.on.open)(head);
  }

  /** Arrows move along the picture; one cell is in the tab order. */
  key(event) {
    const head = this.indexOf(event), moves = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};
    if (head === null || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in moves) {
      const at = this.places.get(head), [dx, dy] = moves[event.key];
      const next = this.at(at.column + dx, at.row + dy);
      if (next !== undefined) this.focus(next);
    } else if (event.key === "c" || event.key === "C") this.on.second(head);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  at(column, row) {
    for (const [head, place] of this.places) if (place.column === column && place.row === row) return head;
    return undefined;
  }

  focus(head) {
    const button = this.buttons.get(head);
    for (const [, other] of this.buttons) other.tabIndex = -1;
    button.tabIndex = 0;
    button.focus();
  }

  /** Where each head stands: layers across on wide screens, down on narrow ones; or by rank. */
  layOut(width, order) {
    const {source} = this, ranked = order !== null, across = width >= 900 || ranked;
    const heads = ranked ? order : Array.from({length: source.layers * source.heads}, (_, i) => i);
    const columns = ranked ? Math.max(1, Math.floor((width + 8) / 96)) : across ? source.layers : source.heads;
    const label = ranked ? 0 : 34, gap = ranked ? 14 : 2, groupGap = source.group > 1 && source.kv > 1 ? 8 : 0;
    const cell = ranked ? 82 : clamp(Math.floor((width - label - 12 - (across ? 0 : groupGap * source.kv)) / columns) - gap,
      36, 76);
    const rowRoom = cell + kBar + (ranked ? 36 : 4), top = ranked ? 0 : 22;
    const places = new Map();
    heads.forEach((head, n) => {
      const l = Math.floor(head / source.heads), h = head % source.heads, kv = Math.floor(h / source.group);
      const column = ranked ? n % columns : across ? l : h, row = ranked ? Math.floor(n / columns) : across ? h : l;
      const x = label + 10 + column * (cell + gap) + (!ranked && !across ? kv * groupGap : 0);
      const y = top + row * rowRoom + (!ranked && across ? kv * groupGap : 0);
      places.set(head, {column, row, x, y, l, h});
    });
    const last = [...places.values()];
    Object.assign(this, {places, cell, ranked, across, label, top,
      width: Math.max(...last.map((p) => p.x)) + cell + 2, height: Math.max(...last.map((p) => p.y)) + rowRoom});
  }

  /** show: {order or null, measure id, cells: maps|values, role or null, a, b, imageOf(head)}. */
  draw(measures, show, scales, width) {
    this.layOut(width, show.order);
    this.canvas.parentNode.style.width = `${this.width}px`;
    this.canvas.parentNode.style.height = `${this.height}px`;
    this.paint(measures, show, scales);
    this.build(measures, show);
  }

  paint(measures, show, scales) {
    const {source, cell} = this, ratio = sizeCanvas(this.canvas, this.width, this.height);
    const context = this.canvas.getContext("2d"), style = getComputedStyle(this.element);
    const colour = (name) => style.getPropertyValue(name).trim();
    const size = {width: Math.round(cell * ratio), height: Math.round(cell * ratio)};
    const [bq, bk] = source.meta.thumbs, seen = new Map();
    for (const [head, {x, y, l, h}] of this.places) {
      const dim = show.role !== null && source.meta.roles[head] !== show.role;
      const window = source.meta.windows[l];
      if (!seen.has(window)) seen.set(window, seenBins(source, l, {q0: 0, k0: 0, qn: source.nq, kn: source.nk}, bq, bk));
      if (show.cells === "maps" && source.isKnown(l, h)) {
        const image = mapImage(bq, bk, size, seen.get(window), scales.unseen, show.coloursOf(l, h));
        context.putImageData(image, Math.round(x * ratio), Math.round(y * ratio));
      }
      context.save();
      context.scale(ratio, ratio);
      const value = measures.value(show.measure, head), filled = measures.bar(show.measure, value);
      if (show.cells === "values" && filled >= kListed) {
        context.fillStyle = scales.weights.css[scaleIndex(filled, false)];
        context.fillRect(x, y, cell, cell);
      }
      context.strokeStyle = colour("--line");
      context.strokeRect(x + 0.5, y + 0.5, cell - 1, cell - 1);
      context.fillStyle = colour("--track");
      context.fillRect(x, y + cell + 1, cell, kBar - 1);
      context.fillStyle = colour("--a");
      context.fillRect(x, y + cell + 1, cell * filled, kBar - 1);
      if (dim) {
        context.globalAlpha = 0.82;
        context.fillStyle = colour("--ground");
        context.fillRect(x - 1, y - 1, cell + 2, cell + kBar + 2);
      }
      context.restore();
    }
    if (!this.ranked) this.paintLabels(context, ratio, colour, style);
  }

  paintLabels(context, ratio, colour, style) {
    const {source, cell, across} = this;
    context.save();
    context.scale(ratio, ratio);
    context.fillStyle = colour("--muted");
    context.strokeStyle = colour("--muted");
    context.font = `12px ${style.fontFamily}`;
    context.textBaseline = "middle";
    for (const [, {x, y, l, h}] of this.places) {
      if (across ? h === 0 : l === 0) {
        context.textAlign = "center";
        context.fillText(across ? String(l) : `h${h}`, x + cell / 2, this.top - 12);
      }
      if (across ? l === 0 : h === 0) {
        context.textAlign = "right";
        context.fillText(across ? `h${h}` : String(l), this.label - 2, y + cell / 2);
      }
    }
    if (source.group > 1) this.paintBrackets(context);
    context.restore();
  }

  /** A bracket around the heads that share keys and values. */
  paintBrackets(context) {
    const {source, cell, across} = this;
    for (let kv = 0; kv < source.kv; kv++) {
      const first = this.places.get(kv * source.group), last = this.places.get((kv + 1) * source.group - 1);
      context.beginPath();
      if (across) {
        const x = this.label + 3.5;
        context.moveTo(x + 4, first.y + 0.5);
        context.lineTo(x, first.y + 0.5);
        context.lineTo(x, last.y + cell - 0.5);
        context.lineTo(x + 4, last.y + cell - 0.5);
      } else {
        const y = this.top - 4.5;
        context.moveTo(first.x + 0.5, y + 3);
        context.lineTo(first.x + 0.5, y);
        context.lineTo(last.x + cell - 0.5, y);
        context.lineTo(last.x + cell - 0.5, y + 3);
      }
      context.stroke();
    }
  }

  build(measures, show) {
    const {cell} = this, focused = this.body.contains(document.activeElement) || this.body.getRootNode().activeElement
      ? Number(this.body.getRootNode().activeElement?.dataset?.head ?? NaN) : NaN;
    this.buttons = new Map();
    const rows = [];
    for (const [head, place] of this.places) {
      const button = this.button(measures, show, head, place);
      this.buttons.set(head, button);
      (rows[place.row] ??= []).push(button);
      button.style.left = `${place.x}px`;
      button.style.top = `${place.y}px`;
      button.style.setProperty("--cell", `${cell}px`);
    }
    this.body.setAttribute("role", "grid");
    this.body.setAttribute("aria-label", `All heads${this.ranked ? ", by rank" : ""}. Arrows move, Enter opens, C compares.`);
    replace(this.body, rows.map((row) => el("div", {role: "row"}, row.map((cell) => el("div", {role: "gridcell"}, cell)))));
    const start = this.buttons.get(focused) ?? this.buttons.get(this.source.index(...headOf(show.a)))
      ?? this.buttons.values().next().value;
    start.tabIndex = 0;
    if (this.buttons.has(focused)) start.focus();
  }

  button(measures, show, head, {l, h}) {
    const role = measures.role(head), value = measures.text(show.measure, head);
    const name = `${l}.${h}`;
    const dim = show.role !== null && role[0] !== show.role;
    const marks = `${name === show.a ? " is-a" : ""}${name === show.b ? " is-b" : ""}${dim ? " dim" : ""}`;
    return el("button", {class: `cell${marks}`, tabindex: "-1", dataset: {head},
      "aria-label": `layer ${l}, head ${h}, ${role[2]}, ${ruleOf(show.measure)[1]} ${value}`},
    el("span", {class: `letter${role[0] === "mixed" || role[0] === "broad" ? " faint" : ""}`}, role[1]),
    this.ranked ? el("span", {class: "under"}, el("b", {}, name), ` ${value}`) : null);
  }
}
