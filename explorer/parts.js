// Pieces that several views share.

/** Layer and head selects; onChange gets "layer.head". */
class HeadChoice {
  constructor(source, label, onChange) {
    const emit = () => onChange(`${this.layer.select.value}.${this.head.select.value}`);
    const range = (n) => Array.from({length: n}, (_, i) => i);
    const kv = (h) => (source.kv < source.heads ? ` (kv ${Math.floor(h / source.group)})` : "");
    this.layer = new Choice(`${label} layer`, range(source.layers).map((l) => [l, `layer ${l}`]), emit);
    this.head = new Choice(`${label} head`, range(source.heads).map((h) => [h, `head ${h}${kv(h)}`]), emit);
    for (const choice of [this.layer, this.head]) choice.element.firstChild.className = "unseen";
    this.role = el("span", {class: "role"});
    this.element = el("span", {class: "head-choice"}, el("strong", {}, label), this.layer.element, this.head.element,
      this.role);
  }

  set(name, measures) {
    const [l, h] = headOf(name);
    this.layer.set(l);
    this.head.set(h);
    const role = measures.role(measures.source.index(l, h));
    this.role.textContent = role[2];
    this.role.title = `Role in this text: ${role[3]}`;
  }
}

/** All measures of one head with median and rank. Another head changes texts and bars in place. */
class MeasureTable {
  constructor(measures) {
    this.measures = measures;
    this.element = el("div", {});
  }

  build(ids) {
    const {measures} = this;
    this.ids = ids.join();
    this.lines = ids.map((id) => {
      const [, title, , rule] = ruleOf(id), {median} = measures.values.get(id), fill = el("i", {});
      return {id, rule, fill, name: el("span", {}, title), value: el("span", {}), rank: el("span", {}),
        bar: el("span", {class: "bar", "aria-hidden": "true"}, fill,
          median === null ? null : el("b", {style: {left: `${100 * measures.bar(id, median)}%`}}))};
    });
    const made = table(" ", [["measure", ""], ["value", "number"], ["bar: this head, tick: median", "bar-cell"],
      ["rank", "rank"]], this.lines.map((line) => [line.name, line.value, line.bar, line.rank]));
    made.className = "measure-table";
    this.caption = made.querySelector("caption");
    replace(this.element, el("h2", {}, "Measures ",
      el("span", {class: "hint"}, "bar: this head, tick: median head")), made);
  }

  draw(head, caption) {
    const {measures} = this, ids = kMeasures.map(([id]) => id).filter((id) => measures.values.has(id));
    // Another link has another median.
    if (this.ids !== ids.join() || this.link !== measures.values.get("link")) this.build(ids);
    this.link = measures.values.get("link");
    this.caption.textContent = caption;
    for (const {id, rule, name, value, fill, bar, rank} of this.lines) {
      const x = measures.value(id, head), chance = measures.chance(id, head);
      name.title = rule + (chance === null ? "" : `; by chance ${chance.toFixed(2)}`);
      value.textContent = measures.text(id, head);
      bar.hidden = x === null;
      fill.style.width = `${100 * measures.bar(id, x)}%`;
      rank.textContent = measures.rank(id, head);
    }
  }
}

/** Every head as a coloured square by the measure; a click goes there. One canvas, one button a head over it. */
class SmallHeads {
  constructor(source, onPick) {
    Object.assign(this, {source, onPick, cell: 0});
    this.canvas = el("canvas", {"aria-hidden": "true"});
    this.mark = el("div", {class: "small-mark"});
    this.element = el("div", {class: "small-heads", role: "img", on: {
      click: (e) => this.pick(e), pointermove: (e) => this.hint(e)}}, this.canvas, this.mark);
  }

  headAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const layer = Math.floor((event.clientX - box.left) / this.cell);
    const head = this.tops.findIndex((top) => event.clientY - box.top >= top && event.clientY - box.top < top + this.cell);
    return head < 0 || layer < 0 || layer >= this.source.layers ? null : `${layer}.${head}`;
  }

  pick(event) {
    const head = this.headAt(event);
    if (head) this.onPick(head);
  }

  hint(event) {
    const head = this.headAt(event);
    this.element.title = head ? `head ${head}` : "";
    this.element.style.cursor = head ? "pointer" : "default";
  }

  draw(measures, id, scale, selected, width) {
    const {source} = this;
    this.cell = clamp(Math.floor(width / source.layers), 6, 16);
    this.tops = Array.from({length: source.heads}, (_, h) => h * this.cell
      + (source.group > 1 ? 5 * Math.floor(h / source.group) : 0));
    const ratio = sizeCanvas(this.canvas, this.cell * source.layers, this.tops.at(-1) + this.cell);
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    for (let l = 0; l < source.layers; l++) {
      for (let h = 0; h < source.heads; h++) {
        const value = measures.value(id, source.index(l, h));
        context.fillStyle = scale.css[scaleIndex(measures.bar(id, value), false)];
        context.fillRect(l * this.cell, this.tops[h], this.cell - 1, this.cell - 1);
      }
    }
    const [l, h] = headOf(selected);
    this.mark.style.left = `${l * this.cell - 2}px`;
    this.mark.style.top = `${this.tops[h] - 2}px`;
    this.mark.style.setProperty("--size", `${this.cell - 1}px`);
    this.element.setAttribute("aria-label", `All heads, layers across, by ${ruleOf(id)[1]}; head ${selected} is marked.`
      + " The selects above go to any head.");
  }
}

/** "78 on". */
function tokenName(tokens, i) {
  return el("span", {class: "token-name"}, el("span", {class: "index"}, String(i)), " ", el("bdi", {}, tokens.full(i)));
}

/** A message where something of the file is missing. */
const trouble = (error) => el("p", {class: "trouble", role: "status"}, error.message);

/** Runs `draw`; where the file is cut, `place` says so instead. Returns whether all went well. */
function orTrouble(place, draw) {
  try {
    draw();
    return true;
  } catch (error) {
    if (!(error instanceof DataError)) throw error;
    replace(place, trouble(error));
    return false;
  }
}
