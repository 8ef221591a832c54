// What is known of every head: measures with their rules and chance levels, roles, ranks.

const kMeasures = [
  ["ind", "Induction", "induction", "weight on the token after an earlier copy of this token"],
  ["dup", "Duplicate", "duplicate", "weight on earlier copies of this token"],
  ["prev", "Previous", "previous", "weight on the token just before"],
  ["self", "Self", "self", "weight on the token itself"],
  ["first", "First token", "first", "weight on the first token"],
  ["local", "Local", "local", "weight on the 8 tokens before"],
  ["delim", "Delimiters", "delimiter", "weight on punctuation, line ends and control tokens"],
  ["entropy", "Entropy (bits)", "entropy", "entropy of a row's weights, mean over rows; 0: one key, 1: two equal keys"],
  ["dist", "Mean distance", "distance", "tokens between query and key, by weight, the first token left out"],
  ["link", "This link", null, "the weight that each head gives the chosen query → key"],
];

const kRoles = [
  ["resting", "0", "Resting", "≥ .99 on the first key"],
  ["induction", "I", "Induction", "≥ .4 of the weight outside the first key on the token after an earlier copy"],
  ["duplicate", "D", "Duplicate", "≥ .4 of that weight on earlier copies of the token"],
  ["previous", "P", "Previous", "≥ .4 of that weight on the token before"],
  ["self", "=", "Self", "≥ .4 of that weight on the token itself"],
  ["local", "L", "Local", "≥ .4 of that weight on the 8 tokens before"],
  ["delimiter", "¶", "Delimiter", "≥ .4 of that weight on punctuation, line ends and control tokens"],
  ["broad", "~", "Broad", "spread outside the first key ≥ .75 of its maximum"],
  ["mixed", "", "Mixed", "none of these"],
];

const kNotAsked = "not asked for";
const roleOf = (name) => kRoles.find((role) => role[0] === name) ?? [name, "", "Not asked for", "this head was left out"];

class Measures {
  constructor(source) {
    this.source = source;
    this.values = new Map();
    this.heads = source.layers * source.heads;
    for (const [id, , field] of kMeasures) if (field) this.keep(id, this.read(id, field));
  }

  read(id, field) {
    const scale = id === "entropy" ? 1 / Math.LN2 : 1;
    return (this.source.meta.measures[field] ?? []).map((x) => (x === null ? null : x * scale));
  }

  /** `why`: words for heads that have no value; `smaller`: how many of those are known to be below the others. */
  keep(id, values, why = [], smaller = 0) {
    const known = values.filter((x) => x !== null).sort((a, b) => b - a), count = known.length + smaller;
    this.values.set(id, {values, known, why, count, most: known[0] ?? 0, median: known[count >> 1] ?? null});
  }

  /** Measures the link query → key in every head. */
  setLink(rows, query, key) {
    const name = `${rows.mode} ${query} ${key}`;
    if (this.link === name) return;
    const {source} = this, found = [];
    for (let l = 0; l < source.layers; l++) {
      for (let h = 0; h < source.heads; h++) {
        found.push(source.hasRows(l, h) ? rows.weight(l, h, query, key) : source.isKnown(l, h) ? "no rows" : kNotAsked);
      }
    }
    this.keep("link", found.map((x) => (typeof x === "number" ? x : null)), found,
      found.filter((x) => x === belowTau(source.meta)).length);
    this.link = name;
  }

  dropLink() {
    this.keep("link", []);
    this.link = null;
  }

  value(id, head) {
    return this.values.get(id)?.values[head] ?? null;
  }

  /** "3 of 270", 1 being the largest; nothing where all heads have the same. */
  rank(id, head) {
    const {known, count} = this.values.get(id), value = this.value(id, head);
    const alike = count > 1 && known.length === count && known[0] === known.at(-1);
    return value === null || alike ? "" : `${known.indexOf(value) + 1} of ${count}`;
  }

  /** Length of a bar, 0-1: shares of weight as they are, others by the largest head. */
  bar(id, value) {
    if (value === null) return 0;
    const most = this.values.get(id).most;
    return id === "entropy" || id === "dist" ? (most > 0 ? value / most : 0) : clamp(value, 0, 1);
  }

  chance(id, head) {
    const field = kMeasures.find((m) => m[0] === id)[2];
    return this.source.meta.chance?.[field]?.[head] ?? null;
  }

  role(head) {
    return roleOf(this.source.meta.roles[head]);
  }

  ranked(id) {
    const {values} = this.values.get(id) ?? {values: []};
    return Array.from({length: this.heads}, (_, i) => i)
      .sort((a, b) => (values[b] ?? -1) - (values[a] ?? -1) || a - b);
  }

  text(id, head) {
    const value = this.value(id, head);
    if (value !== null) return value.toFixed(id === "dist" ? 1 : 2);
    const known = this.source.isKnown(Math.floor(head / this.source.heads), head % this.source.heads);
    return this.values.get(id)?.why[head] ?? (known ? "not measurable" : kNotAsked);
  }
}

const ruleOf = (id) => kMeasures.find((m) => m[0] === id);
