// The planner's arithmetic once more, in whole numbers of any size: what src/cost/ does in C++. The page holds the two
// against each other when it opens.
"use strict";
const Cost = (() => {
  const big = (value) => BigInt(value);
  const least = (a, b) => (a < b ? a : b);
  const most = (a, b) => (a > b ? a : b);
  const up = (a, b) => (a + b - 1n) / b;
  const total = (terms) => terms.reduce((sum, term) => sum + term, 0n);
  const UNLIMITED = 1n << 40n;

  const seenByFirst = (n, window) => {
    const ramp = least(n, window);
    return (ramp * (ramp + 1n)) / 2n + (n - ramp) * window;
  };
  const sumOfEnds = (n, step, limit) => {
    const rising = least(n, limit / step);
    return step * ((rising * (rising + 1n)) / 2n) + (n - rising) * limit;
  };

  // A layer's sizes as whole numbers.
  const sizes = (layer) => {
    const s = {};
    for (const [key, value] of Object.entries(layer)) s[key] = typeof value === "number" ? big(value) : value;
    return s;
  };

  // Which queries meet which keys, for one sequence: phase is "prefill" or "decode".
  const calls = (layer, work, phase) => {
    const none = { calls: 0n, queries: 0n, fresh: 0n, full: 0n, visible: 0n, read: 0n };
    const window = layer.window > 0n ? layer.window : 2n * UNLIMITED;
    const prompt = work.prompt, context = work.prompt + work.generated;
    if (layer.attends !== "causal") {
      const cross = layer.attends === "source";
      if (phase === "decode" && !cross) return none;
      const queries = phase === "decode" ? 1n : prompt;
      const made = phase === "decode" ? 1n : cross && work.chunk > 0n ? up(prompt, work.chunk) : 1n;
      return { calls: made, queries, fresh: phase === "decode" ? 0n : prompt, full: queries * prompt,
               visible: queries * prompt, read: made * prompt };
    }
    if (phase === "decode") {
      const keys = least(context, window);
      return { calls: 1n, queries: 1n, fresh: 1n, full: keys, visible: keys, read: keys };
    }
    const chunk = work.chunk > 0n ? work.chunk : prompt;
    const whole = prompt / chunk, rest = prompt - whole * chunk;
    const keys = (rows) => least(prompt, window + rows - 1n);
    return { calls: up(prompt, chunk), queries: prompt, fresh: prompt,
             full: chunk * sumOfEnds(whole, chunk, window) + rest * least(prompt, window),
             visible: seenByFirst(prompt, window),
             read: sumOfEnds(whole, chunk, keys(chunk)) + (rest > 0n ? keys(rest) : 0n) };
  };

  // FLOPs of one layer: projections, the two products, the feed-forward.
  const layerFlops = (l, work, phase) => {
    const c = calls(l, work, phase), b = work.batch, rows = 2n * b * c.queries;
    const pairs = 2n * b * (work.triangle ? c.visible : c.full) * l.q_heads;
    const matrices = l.gated ? 3n : 2n;
    const feedForward = l.experts > 0n
      ? rows * l.model_dim * (l.experts + matrices * (l.experts_used * l.ffn_dim + l.shared_dim))
      : rows * matrices * l.model_dim * l.ffn_dim;
    const output = rows * l.q_heads * l.value_dim * l.model_dim;
    if (l.kv_rank === 0n) {
      const fresh = 2n * b * c.fresh * l.model_dim * l.kv_heads;
      return { q: rows * l.model_dim * l.q_heads * l.head_dim, k: fresh * l.head_dim, v: fresh * l.value_dim,
               scores: pairs * l.head_dim, weighted: pairs * l.value_dim, output, feedForward };
    }
    const absorbed = (phase === "decode" ? work.decodeForm : work.prefillForm) === "absorbed";
    const qDim = l.nope_dim + l.rope_dim;
    const q = l.q_rank > 0n ? rows * (l.model_dim * l.q_rank + l.q_rank * l.q_heads * qDim)
                            : rows * l.model_dim * l.q_heads * qDim;
    const down = 2n * b * c.fresh * l.model_dim * (l.kv_rank + l.rope_dim);
    const lifted = absorbed ? rows : 2n * b * c.read;
    return { q, k: down + lifted * l.kv_rank * l.q_heads * l.nope_dim, v: lifted * l.kv_rank * l.q_heads * l.value_dim,
             scores: pairs * (absorbed ? l.kv_rank + l.rope_dim : qDim),
             weighted: pairs * (absorbed ? l.kv_rank : l.value_dim), output, feedForward };
  };

  const hasLogits = (model) => model.output_matrix && model.vocab_size > 0;
  const firstDim = (model) => big(model.layers[0].model_dim);

  const flops = (model, work, phase) => {
    const sums = { projections: 0n, attention: 0n, feedForward: 0n, logits: 0n };
    for (const layer of model.layers) {
      const l = sizes(layer), f = layerFlops(l, work, phase);
      sums.projections += l.count * (f.q + f.k + f.v + f.output);
      sums.attention += l.count * (f.scores + f.weighted);
      sums.feedForward += l.ffn_dim > 0n ? l.count * f.feedForward : 0n;
    }
    if (hasLogits(model)) sums.logits = 2n * work.batch * big(model.vocab_size) * firstDim(model);
    sums.all = sums.projections + sums.attention + sums.feedForward + sums.logits;
    return sums;
  };

  const rowBytes = (elements, type) => up(elements, big(type.block_elements)) * big(type.block_bytes);

  // Keys may be kept as another type than values.
  const keysOf = (type) => type.keys || type;

  const tokenBytes = (l, type) => l.attends === "all" ? 0n
    : l.kv_rank > 0n ? rowBytes(l.kv_rank + l.rope_dim, keysOf(type).channel_bytes > 0 ? type : keysOf(type))
    : l.kv_heads * (rowBytes(l.head_dim, keysOf(type)) + rowBytes(l.value_dim, type));

  // Scales of keys by channel, of all sequences together: latents, which are values too, have none.
  const channelBytes = (l, type) =>
    l.kv_rank > 0n ? 0n : big(keysOf(type).channel_bytes) * l.kv_heads * l.head_dim;

  const kvCache = (model, work) => total(model.layers.map((layer) => {
    const l = sizes(layer);
    if (l.attends === "all") return 0n;
    let tokens = l.attends === "source" ? work.prompt : work.prompt + work.generated;
    if (l.window > 0n && work.boundedWindows) tokens = least(tokens, l.window);
    if (work.ring > 1n) tokens = up(tokens, work.ring);
    if (work.page > 0n) tokens = up(tokens, work.page) * work.page;
    return l.count * (work.batch * tokens * tokenBytes(l, work.kvType) + channelBytes(l, work.kvType));
  }));

  // Parameters of one layer: attention, experts, the rest of the feed-forward.
  const layerParameters = (l) => {
    const d = l.model_dim, matrices = l.gated ? 3n : 2n;
    let attention;
    if (l.kv_rank > 0n) {
      const qDim = l.q_heads * (l.nope_dim + l.rope_dim);
      attention = (l.q_rank > 0n ? d * l.q_rank + l.q_rank * qDim + l.q_rank : d * qDim) +
        d * (l.kv_rank + l.rope_dim) + l.kv_rank + l.kv_rank * l.q_heads * (l.nope_dim + l.value_dim) +
        l.q_heads * l.value_dim * d;
    } else {
      const q = l.q_heads * l.head_dim, k = l.kv_heads * l.head_dim, v = l.kv_heads * l.value_dim;
      attention = d * (q + k + v) + l.q_heads * l.value_dim * d + (l.bias_q ? q : 0n) + (l.bias_k ? k : 0n) +
        (l.bias_v ? v : 0n) + (l.bias_output ? d : 0n) + (l.qk_norm ? 2n * l.head_dim : 0n) +
        (l.sinks ? l.q_heads : 0n);
    }
    let dense = l.experts > 0n
      ? d * l.experts + (l.router_bias || l.ffn_biases ? l.experts : 0n) + matrices * d * l.shared_dim
      : matrices * d * l.ffn_dim;
    if (l.ffn_biases) dense += most(l.experts, 1n) * ((l.gated ? 2n : 1n) * l.ffn_dim + d);
    if (l.ffn_dim === 0n) dense = 0n;
    return { attention, dense, experts: l.experts * matrices * d * l.ffn_dim };
  };

  const plain = (type) => (type.block_elements === 1 ? type : { block_elements: 1, block_bytes: 4 });

  // Bytes of `weights` weights of a part: each type its share where the file has several.
  const storedPart = (model, part, weights, otherwise) => {
    const entries = model.stored.filter((entry) => entry.part === part);
    const all = total(entries.map((entry) => big(entry.weights)));
    if (all === 0n) return rowBytes(weights, otherwise);
    return total(entries.map((entry) => rowBytes(weights === all ? big(entry.weights)
      : up(weights * big(entry.weights), all), entry.type)));
  };

  const weights = (model) => {
    const sums = { attention: 0n, dense: 0n, experts: 0n, norms: 0n };
    for (const layer of model.layers) {
      const l = sizes(layer), p = layerParameters(l);
      sums.attention += l.count * p.attention;
      sums.dense += l.count * p.dense;
      sums.experts += l.count * p.experts;
      sums.norms += l.count * l.norm_parameters;
    }
    const d = firstDim(model), vocabulary = big(model.vocab_size) * d, type = model.weight_type;
    const of = (part, count, otherwise) => storedPart(model, part, count, otherwise);
    let bytes = of("attention", sums.attention, type) + of("feed_forward", sums.dense, type) +
      of("experts", sums.experts, model.expert_type) + of("norms", sums.norms, plain(type)) +
      of("other", big(model.other_parameters), plain(type));
    if (vocabulary > 0n) {
      bytes += of("embedding", vocabulary + big(model.position_rows) * d, type);
      if (model.output_matrix && !model.tied_output) bytes += of("output", vocabulary, type);
    }
    return bytes;
  };

  const scratch = (model, work) => {
    const share = (tokens) => (work.ring > 1n ? up(tokens, work.ring) : tokens);
    const atMost = work.chunk > 0n ? work.batch * work.chunk : work.scratchTokens;
    const rows = most(least(work.batch * share(work.prompt), atMost), work.batch);
    let widest = 0n, expanded = 0n, heads = 0n, projected = 0n, hidden = 0n, activated = 0n;
    for (const layer of model.layers) {
      const l = sizes(layer), mla = l.kv_rank > 0n;
      const attention = mla
        ? l.q_rank + l.kv_rank + l.rope_dim + l.q_heads * (l.nope_dim + l.rope_dim + l.value_dim)
        : (l.q_heads + l.kv_heads) * (l.head_dim + l.value_dim);
      const ffn = ((l.experts > 0n ? l.experts_used : 1n) * l.ffn_dim + l.shared_dim) * (l.gated ? 2n : 1n);
      widest = most(widest, most(attention, ffn));
      heads = most(heads, attention);
      projected = most(projected, attention - l.q_heads * l.value_dim);
      hidden = most(hidden, ffn);
      activated = most(activated, ffn / (l.gated ? 2n : 1n));
      if (mla && work.prefillForm === "expanded")
        expanded = most(expanded, l.q_heads * (l.nope_dim + l.rope_dim + l.value_dim));
    }
    const a = big(work.activationBytes);
    const latents = least(work.batch * share(work.prompt + work.generated), work.scratchTokens);
    const d = firstDim(model);
    const rounded = model.weight_type.name === "bf16" && a >= 4n ? most(d, activated) : 0n;
    const steps = work.scratchApart
      ? rows * (4n * (2n * d + hidden + (a < 4n ? projected : 0n)) + a * (d + heads + activated + rounded))
      : 2n * rows * d * a + rows * widest * a;
    return steps + latents * expanded * a + (hasLogits(model) ? work.batch * big(model.vocab_size) * 4n : 0n);
  };

  // Bytes that cross the bus once, by kind of kernel, and which of them are weights.
  const traffic = (model, work, phase) => {
    const sums = { projections: 0n, attention: 0n, feedForward: 0n, logits: 0n }, held = { ...sums };
    const read = (kind, bytes) => { sums[kind] += bytes; held[kind] += bytes; };
    const a = big(work.activationBytes);
    for (const layer of model.layers) {
      const l = sizes(layer), c = calls(l, work, phase), rows = work.batch * c.queries, p = layerParameters(l);
      const mla = l.kv_rank > 0n;
      const q = mla ? l.q_heads * (l.nope_dim + l.rope_dim) : l.q_heads * l.head_dim;
      const width = mla ? l.kv_rank + l.rope_dim + q : q + l.kv_heads * (l.head_dim + l.value_dim);
      read("projections", l.count * c.calls * storedPart(model, "attention", p.attention, model.weight_type));
      sums.projections += l.count * rows * (2n * l.model_dim + width + l.q_heads * l.value_dim) * a;
      const token = l.attends === "all" ? l.kv_heads * (l.head_dim + l.value_dim) * a : tokenBytes(l, work.kvType);
      sums.attention += l.count * (work.batch * (c.read + c.fresh) * token + rows * (q + l.q_heads * l.value_dim) * a);
      if (l.ffn_dim === 0n) continue;
      let active = l.ffn_dim, moved = c.calls * storedPart(model, "feed_forward", p.dense, model.weight_type);
      if (l.experts > 0n) {
        active = l.experts_used * l.ffn_dim + l.shared_dim;
        const touched = least(l.experts, l.experts_used * up(rows, most(c.calls, 1n)));
        moved += c.calls * storedPart(model, "experts", (p.experts / l.experts) * touched, model.expert_type);
      }
      read("feedForward", l.count * moved);
      sums.feedForward += l.count * rows * (2n * l.model_dim + active * (l.gated ? 4n : 2n)) * a;
    }
    if (hasLogits(model)) {
      const vocabulary = big(model.vocab_size);
      read("logits", storedPart(model, model.tied_output ? "embedding" : "output", vocabulary * firstDim(model), model.weight_type));
      sums.logits += work.batch * vocabulary * a;
    }
    return { ...sums, weights: held };
  };

  // FLOPs and bytes of every kind of kernel on one device: a ring has the weights on each and divides everything else.
  const kernels = (model, work, phase) => {
    const done = flops(model, work, phase), moved = traffic(model, work, phase), made = { flops: {}, bytes: {} };
    for (const kind of Object.keys(moved.weights)) {
      const weights = moved.weights[kind];
      made.flops[kind] = up(done[kind], work.ring);
      made.bytes[kind] = weights + up(moved[kind] - weights, work.ring);
    }
    for (const what of Object.values(made)) what.all = total(Object.values(what));
    return made;
  };

  // Kernel after kernel, each at its own roof.
  const seconds = (made, machine) => Object.keys(made.flops).filter((kind) => kind !== "all").reduce((sum, kind) =>
    sum + Math.max(Number(made.flops[kind]) / machine.flops, Number(made.bytes[kind]) / machine.bandwidth), 0);

  const withHeads = (model, heads) => ({ ...model, layers: model.layers.map((layer) =>
    layer.kv_rank > 0 || heads === null ? layer : { ...layer, kv_heads: heads }) });

  const onOneDevice = (model, devices) => {
    if (devices <= 1) return model;
    const share = (size) => Math.ceil(size / devices);
    return { ...model, vocab_size: share(model.vocab_size), layers: model.layers.map((layer) => ({ ...layer,
      q_heads: share(layer.q_heads), kv_heads: share(layer.kv_heads), ffn_dim: share(layer.ffn_dim),
      shared_dim: share(layer.shared_dim) })) };
  };

  // The least length from which the products cost as much as what they are held against; null: never.
  const crossover = (model, work, everything) => {
    const one = { ...work, prompt: 1n, generated: 0n, batch: 1n, chunk: 0n };
    const per = flops(model, one, "prefill");
    const held = per.projections + (everything ? per.feedForward : 0n);
    const reached = (n) => {
      let twice = 0n;
      for (const layer of model.layers) {
        const l = sizes(layer), f = layerFlops(l, one, "prefill");
        const window = l.window > 0n ? least(l.window, n) : n;
        const pairs = l.attends !== "causal" || !work.triangle ? 2n * n * window : 2n * n * window - window * window;
        twice += l.count * (f.scores + f.weighted) * pairs;
      }
      return twice >= 2n * n * held;
    };
    if (!reached(UNLIMITED)) return null;
    let low = 1n, high = UNLIMITED;
    while (low < high) {
      const middle = (low + high) / 2n;
      if (reached(middle)) high = middle; else low = middle + 1n;
    }
    return low;
  };

  return { flops, kvCache, weights, scratch, kernels, seconds, withHeads, onOneDevice, crossover, big };
})();
