// Reading the data of a page. Views ask for `row(layer, head, query)` and never see how it was stored: docs/page.md.

const kVersion = 1;

/** The file is cut, or of another version. `waiting`: the browser is still reading, ask again later. */
class DataError extends Error {
  constructor(message, waiting = false) {
    super(message);
    this.waiting = waiting;
  }
}

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

const view = (Type, bytes, at, count) => {
  const size = count * Type.BYTES_PER_ELEMENT;
  if (at + size > bytes.length) throw new DataError("shorter than its own table of contents");
  return new Type(bytes.slice(at, at + size).buffer);
};

const half = (() => {
  const table = new Float32Array(65536);
  for (let i = 0; i < 65536; i++) {
    const exponent = i >> 10 & 31, fraction = i & 1023;
    const size = exponent === 31 ? (fraction ? NaN : Infinity) : exponent === 0 ? fraction * 2 ** -24
      : (1 + fraction / 1024) * 2 ** (exponent - 15);
    table[i] = i & 32768 ? -size : size;
  }
  return (bits) => Float32Array.from(bits, (b) => table[b]);
})();

class Source {
  /** `block(id)` gives a block's base64 text or throws DataError. */
  constructor(meta, block) {
    if (meta.version !== kVersion) {
      throw new DataError(`This page's data are of version ${meta.version}; its script reads version ${kVersion}.`);
    }
    Object.assign(this, {meta, block, causal: meta.mask === "causal", cross: !!meta.key_tokens});
    for (const name of ["nq", "nk", "layers", "heads", "kv", "dim"]) this[name] = meta[name];
    this.tokens = new Tokens(meta.tokens);
    this.keyTokens = meta.key_tokens ? new Tokens(meta.key_tokens) : this.tokens;
    this.group = this.heads / this.kv;
    this.offset = this.causal ? this.nk - this.nq : 0;
    this.layerCache = new Map();
    this.headCache = new Map();
    this.stepCache = new Map();
  }

  index(layer, head) {
    return layer * this.heads + head;
  }

  form(layer, head) {
    return this.meta.forms[this.index(layer, head)];
  }

  hasRows(layer, head) {
    return "fs".includes(this.form(layer, head));
  }

  /** Whether the file has anything of a head. */
  isKnown(layer, head) {
    return this.form(layer, head) !== "n";
  }

  /** Why a head has no rows. */
  absence(layer, head) {
    return this.isKnown(layer, head) ? `Rows of head ${layer}.${head} were left out to keep the file small.`
      : `Head ${layer}.${head} was not asked for: the file has nothing of it.`;
  }

  /** Keys [from, to) that a query may see. */
  range(layer, query) {
    const at = query + this.offset, window = this.meta.windows[layer];
    const to = this.causal ? clamp(at + 1, 0, this.nk) : window ? Math.min(this.nk, at + window) : this.nk;
    return [window ? Math.max(0, at - window + 1) : 0, to];
  }

  /** What scores of a layer are bounded by; 0: nothing. */
  softCap(layer) {
    return this.meta.soft_cap?.[layer] ?? 0;
  }

  /** Of two layers the one whose queries see more: a window's keys are among those of a wider one. */
  wider(a, b) {
    const {windows} = this.meta;
    return !windows[a] || (windows[b] && windows[a] >= windows[b]) ? a : b;
  }

  thumbnails() {
    if (!this.thumbs) {
      const [bq, bk] = this.meta.thumbs;
      this.thumbs = this.decode("thumbs", this.layers * this.heads * bq * bk);
    }
    return this.thumbs;
  }

  thumbnail(layer, head) {
    const [bq, bk] = this.meta.thumbs, size = bq * bk;
    return this.thumbnails().subarray(this.index(layer, head) * size, (this.index(layer, head) + 1) * size);
  }

  decode(id, expected) {
    let bytes;
    try {
      bytes = fromBase64(this.block(id));
    } catch (error) {
      if (error instanceof DataError) throw error;
      throw new DataError(`Block ${id} is damaged. The file seems to be cut; what stands before the cut works.`);
    }
    if (bytes.length !== expected) {
      throw new DataError(`Block ${id} has ${bytes.length} of ${expected} bytes. The file seems to be cut; ` +
        "what stands before the cut works.");
    }
    return bytes;
  }

  layer(layer) {
    let found = this.layerCache.get(layer);
    if (!found) {
      const sizes = this.meta.sizes[layer], norms = 2 * this.kv * this.nk;
      const bytes = this.decode(`layer-${layer}`, norms + sizes.reduce((a, b) => a + b, 0));
      const norm = half(view(Uint16Array, bytes, 0, this.kv * this.nk));
      let at = norms;
      found = {norm, blobs: sizes.map((size) => bytes.subarray(at, at += size))};
      this.layerCache.set(layer, found);
    }
    return found;
  }

  /** |v| of the keys, for the key/value head that `head` reads. */
  norms(layer, head) {
    const kv = Math.floor(head / this.group);
    return this.layer(layer).norm.subarray(kv * this.nk, (kv + 1) * this.nk);
  }

  head(layer, head) {
    const index = this.index(layer, head);
    let found = this.headCache.get(index);
    if (!found) {
      const bytes = this.layer(layer).blobs[head], form = this.form(layer, head);
      found = form === "f" ? this.fullHead(bytes) : form === "s" ? this.sparseHead(bytes) : this.mapHead(bytes, 0);
      this.headCache.set(index, found);
      if (this.headCache.size > 600) this.headCache.delete(this.headCache.keys().next().value);
    }
    return found;
  }

  fullHead(bytes) {
    return {tops: view(Float32Array, bytes, 0, this.nq), weights: bytes.subarray(4 * this.nq)};
  }

  sparseHead(bytes) {
    const counts = view(Uint16Array, bytes, 0, this.nq), rests = view(Uint16Array, bytes, 2 * this.nq, this.nq);
    const starts = new Uint32Array(this.nq + 1);
    for (let i = 0; i < this.nq; i++) starts[i + 1] = starts[i] + counts[i];
    const total = starts[this.nq], Key = this.nk > 65536 ? Uint32Array : Uint16Array;
    const keysAt = 4 * this.nq, weightsAt = keysAt + total * Key.BYTES_PER_ELEMENT;
    return {starts, rests, keys: view(Key, bytes, keysAt, total), roots: view(Uint16Array, bytes, weightsAt, total),
      ...this.mapHead(bytes, weightsAt + 2 * total)};
  }

  mapHead(bytes, at) {
    const [bq, bk] = this.meta.map, triangle = this.causal && bq === bk;
    const stored = bytes.subarray(at + 3 * this.nq);
    const map = new Uint8Array(bq * bk);
    if (!triangle) map.set(stored.subarray(0, bq * bk));
    else for (let r = 0, from = 0; r < bq; from += ++r) map.set(stored.subarray(from, from + r + 1), r * bk);
    return {statistics: bytes.subarray(at, at + 3 * this.nq), map};
  }

  /** Weights of one query into `out` [nk], and what the keys that were not kept have together. */
  row(layer, head, query, out = new Float32Array(this.nk)) {
    out.fill(0);
    const data = this.head(layer, head);
    if (data.tops) {
      const width = this.nk;
      const at = this.causal ? this.rowStart(query) : query * width;
      const end = this.causal ? clamp(query + this.offset + 1, 0, width) : width, scale = data.tops[query] / 65025;
      for (let j = 0; j < end; j++) {
        const b = data.weights[at + j];
        out[j] = b * b * scale;
      }
      return {weights: out, rest: 0};
    }
    if (!data.keys) return {weights: out, rest: 1};
    for (let n = data.starts[query]; n < data.starts[query + 1]; n++) {
      out[data.keys[n]] = (data.roots[n] / 65535) ** 2;
    }
    return {weights: out, rest: (data.rests[query] / 65535) ** 2};
  }

  /** Cells of the causal triangle before a query's row. */
  rowStart(query) {
    const rows = (first, count) => count * first + count * (count - 1) / 2;
    const from = Math.max(0, -this.offset);
    return query <= from ? 0 : rows(Math.max(1, this.offset + 1), query - from);
  }

  /** Pooled map, u8 of the square root of the largest weight; null where rows are kept whole. */
  pooled(layer, head) {
    return this.head(layer, head).map ?? null;
  }

  hasSteps(layer, head) {
    return this.meta.steps[layer].includes(head);
  }

  /** q [dim], and of all keys k [nk][dim] and v [nk][value_dim], after rotation. */
  steps(layer, head) {
    const {nq, nk, dim} = this, valueDim = this.meta.value_dim, listed = this.meta.steps[layer];
    const kvs = [...new Set(listed.map((h) => Math.floor(h / this.group)))];
    if (!this.stepCache.has(layer)) {
      const size = 2 * (listed.length * nq * dim + kvs.length * nk * (dim + valueDim));
      this.stepCache.set(layer, this.decode(`steps-${layer}`, size));
      if (this.stepCache.size > 4) this.stepCache.delete(this.stepCache.keys().next().value);
    }
    const bytes = this.stepCache.get(layer), place = kvs.indexOf(Math.floor(head / this.group));
    const part = (at, count) => half(view(Uint16Array, bytes, 2 * at, count));
    const keysAt = listed.length * nq * dim, valuesAt = keysAt + kvs.length * nk * dim;
    return {q: part(listed.indexOf(head) * nq * dim, nq * dim), k: part(keysAt + place * nk * dim, nk * dim),
      v: part(valuesAt + place * nk * valueDim, nk * valueDim)};
  }
}

/** The source in this document. */
function documentSource() {
  const text = (id) => {
    const node = document.getElementById(id);
    const reading = document.readyState === "loading";
    if (!node || (reading && !node.nextSibling)) {
      throw new DataError(reading ? `Reading ${id}…` : `Block ${id} is missing: the file is cut. ` +
        "What stands before the cut works.", reading);
    }
    return node.textContent;
  };
  let meta;
  try {
    meta = JSON.parse(text("meta"));
  } catch {
    throw new DataError("The first block of this file (meta) is cut or damaged: nothing can be shown.");
  }
  return new Source(meta, text);
}
