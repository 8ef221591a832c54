// What is known of the head under the pointer, beside or beneath the grid; its size never changes, so nothing moves.

// ms that the pointer stays on a head before its rows are read; the thumbnail is there at once
const kRest = 40;

class Dock {
  constructor(source, onLink) {
    Object.assign(this, {source, onLink});
    this.map = new HeadMap(source, {point: () => {}, lock: () => {}}, {labels: false});
    for (const name of ["tabindex", "aria-roledescription"]) this.map.element.removeAttribute(name);
    this.map.element.setAttribute("role", "presentation");
    this.title = el("h2", {});
    this.measures = el("div", {class: "dock-measures"});
    this.links = el("div", {class: "dock-links"});
    this.element = el("section", {class: "dock", "aria-label": "The head that is pointed at"},
      el("div", {class: "dock-map"}, this.map.element,
        el("p", {class: "hint"}, "→ key (is attended to)  ↓ query (attends)")),
      el("div", {class: "dock-middle"}, this.title, this.measures), this.links);
  }

  draw(measures, rows, head, scales, linear) {
    const {source} = this, l = Math.floor(head / source.heads), h = head % source.heads;
    const role = measures.role(head), siblings = this.siblings(l, h);
    replace(this.title, `Head ${l}.${h} `, el("span", {class: "role", title: role[3]}, role[2]),
      siblings.length ? el("span", {class: "hint"}, ` shares keys (kv ${Math.floor(h / source.group)}) with ${
        siblings.slice(0, 7).join(", ")}${siblings.length > 7 ? " …" : ""}`) : null);
    if (!this.table) replace(this.measures, (this.table = new MeasureTable(measures)).element);
    this.table.draw(head, `Measures of head ${l}.${h}`);
    this.paint(l, h, {bq: source.meta.thumbs[0], bk: source.meta.thumbs[1], values: source.thumbnail(l, h)},
      (values) => rootColours(values, scales.weights), scales);
    clearTimeout(this.later);
    this.later = setTimeout(() => {
      this.drawMap(rows, l, h, scales, linear);
      orTrouble(this.links, () => replace(this.links, this.linkList(rows, l, h)));
    }, kRest);
  }

  paint(l, h, bins, colours, scales) {
    const {source} = this, window = {q0: 0, k0: 0, qn: source.nq, kn: source.nk};
    this.map.element.style.visibility = source.isKnown(l, h) ? "" : "hidden";
    this.map.draw({binned: bins, colours, layer: l, window, title: `Map of head ${l}.${h}`}, scales, 232);
    this.map.element.removeAttribute("aria-label");
  }

  siblings(l, h) {
    const first = Math.floor(h / this.source.group) * this.source.group;
    return Array.from({length: this.source.group}, (_, n) => first + n).filter((n) => n !== h).map((n) => `${l}.${n}`);
  }

  drawMap(rows, l, h, scales, linear) {
    const {source} = this;
    try {
      this.paint(l, h, binned(rows, l, h, {q0: 0, k0: 0, qn: source.nq, kn: source.nk}, 230),
        (values) => weightColours(values, scales.weights, linear), scales);
    } catch (error) {  // the thumbnail is there even where the layer is cut off
      if (!(error instanceof DataError)) throw error;
    }
  }

  linkList(rows, l, h) {
    const {source} = this, links = strongestLinks(rows, l, h, 7);
    const items = links.map(({query, key, weight}) => el("li", {}, el("button", {class: "plain", on: {
      click: () => this.onLink(l, h, query, key)}}, el("b", {}, shortNumber(weight)), " ",
    tokenName(source.tokens, query), " → ", tokenName(source.keyTokens, key))));
    return [el("h2", {}, "Strongest links ", el("span", {class: "hint"}, "first token aside")),
      items.length ? el("ol", {}, items) : el("p", {class: "hint"}, source.hasRows(l, h)
        ? "none of .005 or more" : source.absence(l, h))];
  }
}
