// What is known of the head under the pointer, beside or beneath the grid; its size never changes, so nothing moves.

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
    replace(this.measures, measureTable(measures, head, `Measures of head ${l}.${h}`));
    this.drawMap(rows, l, h, scales, linear);
    orTrouble(this.links, () => replace(this.links, this.linkList(rows, l, h)));
  }

  siblings(l, h) {
    const first = Math.floor(h / this.source.group) * this.source.group;
    return Array.from({length: this.source.group}, (_, n) => first + n).filter((n) => n !== h).map((n) => `${l}.${n}`);
  }

  drawMap(rows, l, h, scales, linear) {
    const {source} = this, window = {q0: 0, k0: 0, qn: source.nq, kn: source.nk}, [bq, bk] = source.meta.thumbs;
    let picture;
    try {
      const bins = binned(rows, l, h, window, 230);
      picture = {binned: bins, colours: (values) => weightColours(values, scales.weights, linear)};
    } catch (error) {  // the thumbnail is there even where the layer is cut off
      if (!(error instanceof DataError)) throw error;
      picture = {binned: {bq, bk, values: source.thumbnail(l, h)}, colours: (v) => rootColours(v, scales.weights)};
    }
    this.map.draw({...picture, layer: l, window, title: `Map of head ${l}.${h}`}, scales, 232);
    this.map.element.removeAttribute("aria-label");
  }

  linkList(rows, l, h) {
    const {source} = this, links = strongestLinks(rows, l, h, 7);
    const items = links.map(({query, key, weight}) => el("li", {}, el("button", {class: "plain", on: {
      click: () => this.onLink(l, h, query, key)}}, el("b", {}, shortNumber(weight)), " ",
    tokenName(source.tokens, query), " → ", tokenName(source.keyTokens, key))));
    return [el("h2", {}, "Strongest links ", el("span", {class: "hint"}, "first token aside")),
      items.length ? el("ol", {}, items) : el("p", {class: "hint"}, source.hasRows(l, h)
        ? "none of .005 or more" : "rows of this head were left out of this file")];
  }
}
