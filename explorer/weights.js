// The three ways of looking at a row of weights, and what views ask of rows.

const kModes = [["raw", "as they are"], ["nofirst", "without the first key"], ["value", "times value size"]];
const kListed = 0.005;  // weights below are summed up as "the others"
// Of a row outside its first key. Of less, 8 bits a weight leave mostly rounding: rescaled it would be invented.
const kLeastLeft = 0.01;
const kHidden = "cannot be seen", kTooLittle = "too little left";

/** Rows in one mode: `row(layer, head, query)` gives {weights, rest}, and `little` where too little is left to be
    rescaled; the array is reused by the next call. */
class Rows {
  constructor(source, mode) {
    Object.assign(this, {source, mode, buffer: new Float32Array(source.nk)});
  }

  row(layer, head, query, out = this.buffer) {
    const row = this.source.row(layer, head, query, out);
    if (this.mode === "nofirst") return withoutFirst(row);
    if (this.mode === "value") return timesValueSize(row, this.source.norms(layer, head));
    return row;
  }

  /** The weight of a key in a row, or, in words, why there is none. */
  at(layer, query, key, {weights, rest, little = false}) {
    const {source, mode} = this, [from, to] = source.range(layer, query);
    if (key < from || key >= to) return kHidden;
    if (mode === "nofirst" && key === 0) return "left out";
    if (little) return kTooLittle;
    if (weights[key] > 0 || rest === 0) return weights[key];
    return mode === "raw" ? belowTau(source.meta) : "not kept";
  }

  /** The same for a head that has rows. */
  weight(layer, head, query, key) {
    return this.at(layer, query, key, this.row(layer, head, query));
  }
}

/** Words for a weight that is known to be below the largest one that a sparse row may leave out. */
const belowTau = (meta) => `not kept (< ${meta.tau})`;

/** A weight as a text: its digits, or the words for why there is none. */
const told = (weight, digits = 3) => (typeof weight === "number" ? weight.toFixed(digits) : weight);

function withoutFirst({weights, rest}) {
  weights[0] = 0;
  let sum = rest;
  for (const w of weights) sum += w;
  if (!(sum >= kLeastLeft)) return {weights: weights.fill(0), rest: 0, little: true};
  for (let j = 0; j < weights.length; j++) weights[j] /= sum;
  return {weights, rest: rest / sum};
}

/** The keys that were not kept count with the mean size of a value. */
function timesValueSize({weights, rest}, norms) {
  let sum = 0, size = 0;
  for (let j = 0; j < weights.length; j++) {
    size += norms[j];
    sum += weights[j] *= norms[j];
  }
  const others = rest * size / weights.length;
  sum += others;
  if (!(sum > 0)) return {weights, rest: 0};
  for (let j = 0; j < weights.length; j++) weights[j] /= sum;
  return {weights, rest: others / sum};
}

/** The largest weights >= least, at most `count`: [[index, weight]...], largest first. */
function largest(weights, count, least = kListed) {
  const found = [];
  for (let j = 0; j < weights.length; j++) {
    const w = weights[j];
    if (w < least || (found.length === count && w <= found[count - 1][1])) continue;
    let at = found.length;
    while (at > 0 && found[at - 1][1] < w) at--;
    found.splice(at, 0, [j, w]);
    if (found.length > count) found.pop();
  }
  return found;
}

/** Weights of all queries on one key, [nq]. */
function column(rows, layer, head, key) {
  const out = new Float32Array(rows.source.nq);
  for (let i = 0; i < out.length; i++) {
    const [from, to] = rows.source.range(layer, i);
    if (key >= from && key < to) out[i] = rows.row(layer, head, i).weights[key];
  }
  return out;
}

/** The strongest links of a head, the first key aside: [{query, key, weight}]. */
function strongestLinks(rows, layer, head, count) {
  const found = [];
  if (!rows.source.hasRows(layer, head)) return found;
  for (let i = 0; i < rows.source.nq; i++) {
    const {weights} = rows.row(layer, head, i);
    const [from, to] = rows.source.range(layer, i);
    let best = Math.max(1, from);
    for (let j = best + 1; j < to; j++) if (weights[j] > weights[best]) best = j;
    const weight = weights[best];
    if (!(weight >= kListed) || (found.length === count && weight <= found[count - 1].weight)) continue;
    let at = found.length;
    while (at > 0 && found[at - 1].weight < weight) at--;
    found.splice(at, 0, {query: i, key: best, weight});
    if (found.length > count) found.pop();
  }
  return found;
}

/** The largest weight in each bin of a window: {bq, bk, values: Float32Array}, from rows, or from the pooled map. */
function binned(rows, layer, head, window, most) {
  const {q0, k0, qn, kn} = window, bq = Math.min(qn, most), bk = Math.min(kn, most);
  const {source} = rows;
  const whole = qn === source.nq && kn === source.nk;
  if (!source.hasRows(layer, head) || (whole && rows.mode === "raw" && qn > 4096 && source.pooled(layer, head))) {
    return fromPooled(source, layer, head, window);
  }
  const values = new Float32Array(bq * bk), binOf = new Uint16Array(kn);
  for (let j = 0; j < kn; j++) binOf[j] = Math.floor(((j + 1) * bk - 1) / kn);
  for (let i = 0; i < qn; i++) {
    const {weights} = rows.row(layer, head, q0 + i);
    const row = Math.floor(((i + 1) * bq - 1) / qn) * bk, [from, to] = source.range(layer, q0 + i);
    for (let j = Math.max(0, from - k0), end = Math.min(kn, to - k0); j < end; j++) {
      const w = weights[k0 + j], at = row + binOf[j];
      if (w > values[at]) values[at] = w;
    }
  }
  return {bq, bk, values};
}

function fromPooled(source, layer, head, {q0, k0, qn, kn}) {
  const [mq, mk] = source.meta.map, map = source.pooled(layer, head);
  const first = (start, all, bins) => Math.floor(start * bins / all);
  const r0 = first(q0, source.nq, mq), r1 = Math.max(r0 + 1, Math.ceil((q0 + qn) * mq / source.nq));
  const c0 = first(k0, source.nk, mk), c1 = Math.max(c0 + 1, Math.ceil((k0 + kn) * mk / source.nk));
  const values = new Float32Array((r1 - r0) * (c1 - c0));
  for (let r = r0, at = 0; r < r1; r++) {
    for (let c = c0; c < c1; c++) values[at++] = (map[r * mk + c] / 255) ** 2;
  }
  return {bq: r1 - r0, bk: c1 - c0, values};
}

/** Of each bin, whether any of its pairs is visible. */
function seenBins(source, layer, {q0, k0, qn, kn}, bq, bk) {
  const seen = new Uint8Array(bq * bk);
  for (let r = 0; r < bq; r++) {
    const first = q0 + Math.floor(r * qn / bq), last = Math.max(first, q0 + Math.floor((r + 1) * qn / bq) - 1);
    const from = source.range(layer, first)[0] - k0, to = source.range(layer, last)[1] - k0;
    for (let c = 0; c < bk; c++) {
      const a = Math.floor(c * kn / bk), b = Math.max(a + 1, Math.floor((c + 1) * kn / bk));
      if (b > from && a < to) seen[r * bk + c] = 1;
    }
  }
  return seen;
}
