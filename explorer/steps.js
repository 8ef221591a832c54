// How one row of weights arises from q, k and v.

const kSteps = [
  ["product", "q·k", "The query is multiplied with every key: large where they point the same way."],
  ["scaled", "scaled", "Products grow with the size of a head, so they are scaled."],
  ["capped", "soft-capped", "A soft-cap keeps scores between two bounds: c tanh(s / c)."],
  ["mask", "mask", "What comes after the query, or lies outside its window, is hidden: −∞."],
  ["exp", "exp(s − max)", "The exponential makes every score positive and the largest 1."],
  ["weight", "weight", "Divided by their sum, they sum to 1: the weights."],
  ["size", "|v|", "Every key has a value; this is its length."],
  ["mixed", "w·|v|", "The output is the values' sum, each by its weight. A long value counts more than its weight says."],
];

/** Those of a layer: most models have no soft-cap. */
function stepsOfLayer(source, layer) {
  return kSteps.filter(([id]) => id !== "capped" || source.softCap(layer) > 0);
}

/** All numbers of one row from what the file keeps, or null where it does not keep this head's q, k and v. */
function stepsOfRow(source, layer, head, query) {
  if (!source.hasSteps(layer, head)) return null;
  const {q, k, v} = source.steps(layer, head), {dim, nk} = source, valueDim = source.meta.value_dim;
  const [from, to] = source.range(layer, query), scale = source.meta.scale[layer];
  const cap = source.softCap(layer), capped = (s) => (cap > 0 ? cap * Math.tanh(s / cap) : s);
  const score = (j) => capped(product[j] * scale);
  const product = new Float64Array(nk), weight = new Float64Array(nk), exp = new Float64Array(nk);
  let most = -Infinity, total = 0;
  for (let j = 0; j < nk; j++) {
    for (let c = 0; c < dim; c++) product[j] += q[query * dim + c] * k[j * dim + c];
    if (j >= from && j < to) most = Math.max(most, score(j));
  }
  for (let j = from; j < to; j++) total += exp[j] = Math.exp(score(j) - most);
  const output = new Float64Array(valueDim);
  for (let j = from; j < to; j++) {
    weight[j] = exp[j] / total;
    for (let c = 0; c < valueDim; c++) output[c] += weight[j] * v[j * valueDim + c];
  }
  return {q: q.subarray(query * dim, (query + 1) * dim), k, v, product, scale, score, exp, weight, output, from, to};
}

/** Bars around zero for the elements of a vector. */
function vectorBars(title, values, scale, className = "") {
  const width = 260, height = 44, canvas = el("canvas", {role: "img", "aria-label":
    `${title}: ${values.length} elements from ${Math.min(...values).toFixed(2)} to ${Math.max(...values).toFixed(2)}`});
  const ratio = sizeCanvas(canvas, width, height), context = canvas.getContext("2d");
  const most = Math.max(1e-9, ...Array.from(values, Math.abs)), step = width / values.length;
  context.scale(ratio, ratio);
  for (let c = 0; c < values.length; c++) {
    const size = values[c] / most * (height / 2 - 1);
    context.fillStyle = values[c] >= 0 ? scale.a.css[170] : scale.b.css[170];
    context.fillRect(c * step, height / 2 - Math.max(size, 0), Math.max(step - 1, 0.7), Math.abs(size));
  }
  return el("div", {class: `vector ${className}`}, el("span", {class: "vector-name"}, title, el("span", {class: "hint"},
    ` largest ${most.toFixed(2)}`)), canvas);
}
