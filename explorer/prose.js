// The text as people read it, with a token's weight as its shade. Pointing changes colours and nothing else: no box moves.

const kNumbers = 6;

class Prose {
  /** on: {point(i or null), lock(i)}. */
  constructor(tokens, on, label) {
    Object.assign(this, {tokens, on});
    this.spans = new Array(tokens.length);
    this.places = [];
    this.shaded = [];
    this.numbers = Array.from({length: kNumbers}, () => el("span", {class: "above"}));
    this.future = null;
    this.element = el("div", {class: "prose", role: "group", "aria-label": `${label}. Arrows move, Enter locks.`,
      tabindex: "0", on: {
        pointerover: (e) => this.over(e), pointerleave: () => on.point(null), click: (e) => this.clicked(e),
        keydown: (e) => this.key(e)}},
    proseLines(tokens).map((line) => el("div", {class: "line", dir: "auto"},
      line.words.map((word) => this.word(word)))), el("div", {class: "numbers", "aria-hidden": "true"}, this.numbers));
  }

  word(word) {
    const spans = word.tokens.map((i) => this.span(i)), isText = this.tokens.isText(word.tokens[0]);
    const characters = word.character ? [el("span", {class: "character"}, word.character)] : [];
    const length = word.tokens.reduce((sum, i) => sum + (this.tokens.isText(i) ? this.tokens.list[i].length : 4), 0);
    const style = `word${length > 28 ? " long" : ""}${word.character ? " bytes" : ""}`;
    const fragment = document.createDocumentFragment();
    if (word.space) fragment.append(" ");
    // Chips are Latin letters: by themselves, so that they turn no line and are turned by none.
    fragment.append(el("span", {class: style}, characters, isText ? spans : el("bdi", {dir: "ltr"}, spans)));
    return fragment;
  }

  span(i) {
    const text = this.tokens.isText(i) ? this.tokens.full(i, "") : this.tokens.full(i);
    const sign = /^[↵⇥␣]+$/.test(text);
    return this.spans[i] = el("span", {class: sign ? "token sign" : "token", dataset: {i}, title: text.length > 24
      ? text : null}, text);
  }

  indexOf(event) {
    const span = event.target.closest?.(".token");
    return span ? Number(span.dataset.i) : null;
  }

  over(event) {
    const i = this.indexOf(event);
    if (i !== this.pointed) this.on.point(i);
  }

  clicked(event) {
    const i = this.indexOf(event);
    if (i !== null) this.on.lock(i);
  }

  key(event) {
    const moves = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1, Home: -1e9, End: 1e9};
    const at = this.pointed ?? this.locked ?? 0;
    if (event.key in moves && !event.ctrlKey && !event.metaKey && !event.altKey) {
      this.on.point(clamp(at + moves[event.key], 0, this.tokens.length - 1));
      this.keepInView(this.pointed);
    } else if (event.key === "Enter" || event.key === " ") this.on.lock(at);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Shades tokens by [[index, weight]...], largest first; numbers stand above the largest where they do not collide. */
  shade(weights, scale, linear) {
    for (const i of this.shaded) {
      this.spans[i].style.removeProperty("background-color");
      this.spans[i].classList.remove("deep");
    }
    this.shaded = weights.map(([i]) => i);
    for (const [i, weight] of weights) {
      const at = scaleIndex(weight, linear);
      this.spans[i].style.setProperty("background-color", scale.css[at]);
      this.spans[i].classList.toggle("deep", scale.dark[at]);
    }
    this.number(weights.filter(([, weight]) => weight >= 0.05).slice(0, kNumbers));
  }

  /** Numbers lie on a layer of their own, so that showing them lays out no text. */
  number(weights) {
    const boxes = [];
    for (const [i, weight] of weights) {
      const [middle, top] = this.place(i);
      if (boxes.some(([x, y]) => Math.abs(x - middle) < 28 && Math.abs(y - top) < 8)) continue;
      boxes.push([middle, top, weight]);
    }
    this.numbers.forEach((node, n) => {
      node.style.visibility = n < boxes.length ? "visible" : "hidden";
      if (n >= boxes.length) return;
      const [middle, top, weight] = boxes[n];
      node.textContent = shortNumber(weight);
      node.style.transform = `translate(${Math.round(middle - 15)}px, ${Math.round(top - 12)}px)`;
    });
  }

  /** Middle and top of a token within the strip. Kept: nothing moves until the width changes (`laidOut`). */
  place(i) {
    const span = this.spans[i];
    return this.places[i] ??= [span.offsetLeft + span.offsetWidth / 2, span.offsetTop];
  }

  laidOut() {
    this.places = [];
  }

  /** Tokens from `from` on are those the query cannot see. */
  fade(from) {
    const now = from ?? this.tokens.length, before = this.future ?? this.tokens.length;
    for (let i = Math.min(now, before); i < Math.max(now, before); i++) {
      this.spans[i].classList.toggle("later", i >= now);
    }
    this.future = now;
  }

  mark(name, i) {
    const before = this[name];
    if (before !== null && before !== undefined) this.spans[before].classList.remove(name);
    this[name] = i;
    if (i !== null && i !== undefined) this.spans[i].classList.add(name);
  }

  /** Scrolls the strip, and only the strip, so far that the token is seen. */
  keepInView(i) {
    if (i === null || i === undefined) return;
    const strip = this.element.getBoundingClientRect(), box = this.spans[i].getBoundingClientRect();
    if (box.top < strip.top + 24) this.element.scrollTop += box.top - strip.top - 40;
    else if (box.bottom > strip.bottom - 8) this.element.scrollTop += box.bottom - strip.bottom + 40;
  }
}

/** Two upright bars under each token, for A and B. */
class TwinBars {
  constructor(prose) {
    this.prose = prose;
    this.bars = prose.spans.map((span) => {
      const pair = el("span", {class: "twins", "aria-hidden": "true"}, el("i", {class: "a"}), el("i", {class: "b"}));
      span.append(pair);
      return pair;
    });
    prose.element.classList.add("with-bars");
    this.drawn = [];
  }

  draw(a, b, linear) {
    for (const i of this.drawn) this.bars[i].classList.remove("on");
    this.drawn = [];
    for (let i = 0; i < a.length; i++) {
      if (a[i] < kListed && b[i] < kListed) continue;
      this.drawn.push(i);
      this.bars[i].classList.add("on");
      this.bars[i].style.setProperty("--of-a", scaleIndex(a[i], linear) / 255);
      this.bars[i].style.setProperty("--of-b", scaleIndex(b[i], linear) / 255);
    }
  }
}
