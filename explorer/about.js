// View "About": what these numbers are, how exact they are, and what may be concluded.

class AboutView {
  constructor(app) {
    const {source} = app, {meta} = source;
    const item = (name, ...text) => [el("dt", {}, name), el("dd", {}, ...text)];
    const mask = {causal: "each token sees itself and what comes before", none: "every query sees every key"}[meta.mask];
    const windows = [...new Set(meta.windows)].filter((w) => w > 0);
    this.element = el("div", {class: "about"},
      el("h2", {}, "What may be concluded"),
      el("p", {}, "A weight says how much of a key's value is mixed into a query's output. It does not say why the model "
        + "answered as it did: values, other heads, layers above and the rest of the network all have their part. A head "
        + "that can be switched off without a change was perhaps not needed, whatever its map looks like."),
      el("p", {}, "Roles are rules applied to this text. Another text can give the same head another role."),
      el("p", {}, "Many heads put most of their weight on the first token, whose value is often much shorter than the "
        + "others: a resting place. “Without the first key” and “times value size” show what is left."),
      el("h2", {}, "What ran"),
      el("dl", {}, item("Model", meta.model), item("Weights of the model", meta.precision),
        item("Made by", meta.program), item("Tokens", source.cross ? `${source.nq} that attend, ${source.nk} attended to`
          : String(source.nq)),
        item("Heads", `${source.layers} layers × ${source.heads} heads, ${source.kv} key/value heads a layer, `
          + `${source.dim} elements a head`),
        item("Mask", mask + (windows.length ? `; in some layers only the last ${windows.join(" or ")}` : ""))),
      el("h2", {}, "How exact it is"), this.exactness(app, meta),
      el("h2", {}, "Measures"), el("p", {}, "Means over the rows where a measure can be taken; where there is none it is "
        + "“not measurable”. By chance: what equal weights on all visible keys would give."),
      table("Measures and their rules", [["measure", ""], ["rule", ""]], kMeasures.map(([, title, , rule]) => [title, rule])),
      el("h2", {}, "Roles"), el("p", {}, "The first rule that holds. Shares are of the weight outside the first key, over "
        + "rows where the target exists."),
      table("Roles and their rules", [["role", ""], ["sign", ""], ["rule", ""]],
        kRoles.map(([, letter, title, rule]) => [title, letter, rule])),
      el("h2", {}, "Colours"), el("p", {}, "The scale is fixed from 0 to 1. By square root (the default) small weights "
        + "look larger than they are; “linear” does not do that. Where a map is smaller than its tokens, each dot shows "
        + "the largest weight under it. Grey is what a query cannot see."),
      el("h2", {}, "Keys"), keyList());
  }

  update() {}

  exactness(app, meta) {
    const error = meta.errors ?? {}, list = [];
    const forms = [...meta.forms].reduce((all, f) => ({...all, [f]: (all[f] ?? 0) + 1}), {});
    const say = (...text) => list.push(el("li", {}, ...text));
    if (forms.f) {
      say(`${forms.f} heads whole: 8 bits a weight, (b / 255)² of its row's largest. Largest error in this file `
        + `${number(error.weight, 4)}; a row's sum is off by at most ${number(error.row_sum, 4)}.`);
    }
    if (forms.s) {
      say(`${forms.s} heads sparse: every weight of ${meta.tau} or more and at least ${meta.least} a row, 16 bits each; `
        + "the other keys of a row are given together as “the others”.");
    }
    if (forms.n) say(`${forms.n} heads were not asked for: the file has nothing of them.`);
    if (forms.m) {
      say(`${forms.m} heads with maps and measures only: their rows were left out to keep the file small. Their maps show `
        + "weights as they are, whatever is chosen.");
    }
    if (app.state.modes().some(([id]) => id === "nofirst")) {
      say("Without the first key a row is divided by what is left of it, and so are its errors: of heads that are whole, "
        + "weights were up to about .02 off in real texts where a hundredth is left, .007 where a tenth is. Rows with less "
        + `than ${kLeastLeft} left are blank: “${kTooLittle}”.`);
    }
    say("Measures are exact: taken from all weights before anything was rounded. Thumbnails and overview maps hold the "
      + "largest weight of each block, 8 bits.");
    say("Sizes of values have 11 significant bits.");
    for (const text of meta.left_out ?? []) say(text);
    return el("ul", {}, list);
  }
}

const kKeys = [["arrows", "move in the grid, the map and the text"], ["Enter", "open a head, lock a token or a link"],
  ["Esc", "unlock"], ["[ and ]", "previous and next head"], ["C", "compare: the head pointed at becomes B"],
  ["X", "with or without the first key"], ["+ and −", "zoom the map"], ["T", "light or dark"], ["?", "this list"]];

function keyList() {
  return table("Keys", [["key", ""], ["what it does", ""]], kKeys.map(([key, what]) => [el("kbd", {}, key), what]));
}
