// The page's views: controls, verdict, plots. Every figure comes from Cost.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const state = { model: 0, machine: 0, context: 128, batch: 0, heads: 0, type: 0, counting: data.counting };

  // --- figures as people read them ---
  const whole = (value) => value.toString().replace(/\B(?=(\d{3})+(?!\d))/g, ",");
  const three = (value) => {
    if (!isFinite(value)) return "-";
    if (value === 0) return "0";
    return value >= 99.95 ? whole(Math.round(value)) : value >= 9.995 ? value.toFixed(1) : value.toFixed(2);
  };
  // In the unit that leaves it below `step`; whole where it is small.
  const scaled = (value, units, step = 1000) => {
    if (Number.isInteger(value) && value < step) return value + " " + units[0];
    let unit = 0;
    while (value >= step - .5 && unit + 1 < units.length) { value /= step; unit++; }
    return three(value) + " " + units[unit];
  };
  const TENS = ["", "k", "M", "G", "T", "P", "E", "Z", "Y", "R", "Q"];
  const TWOS = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "Zi", "Yi"];
  const bytesText = (value) => scaled(Number(value), TENS.map((prefix) => prefix + "B"));
  const flopText = (value) => scaled(Number(value), TENS.map((prefix) => prefix + "FLOP"));
  const binaryText = (value) => scaled(Number(value), TWOS.map((prefix) => prefix + "B"), 1024);
  const time = (s) => s >= 172800 ? three(s / 86400) + " days" : s >= 7200 ? three(s / 3600) + " h" : s >= 1 ? three(s) + " s"
    : s >= 1e-3 ? three(s * 1e3) + " ms" : s >= 1e-6 ? three(s * 1e6) + " µs" : three(s * 1e9) + " ns";
  const tokens = (value) => value >= 1e6 ? three(value / 1e6) + "M" : value >= 1e3 ? three(value / 1e3).replace(/\.0+$/, "") + "k" : String(value);

  // --- what the controls say ---
  const divisors = (layer) => {
    const all = [];
    for (let n = 1; n * n <= layer.q_heads; n++) {
      if (layer.q_heads % n > 0) continue;
      all.push(n);
      if (n * n < layer.q_heads) all.push(layer.q_heads / n);
    }
    return all.sort((a, b) => a - b);
  };
  const isLatent = (model) => model.layers[0].kv_rank > 0;
  // What the command line takes: heads in whole groups, and a split's devices and heads in whole parts of the other.
  const splits = (heads) => data.devices.split !== "tensor" || heads % data.devices.count === 0 || data.devices.count % heads === 0;
  const powers = (model) => {
    const layers = model.layers.filter((layer) => layer.kv_rank === 0);
    if (layers.length === 0) return [1];
    return divisors(layers[0]).filter((heads) => splits(heads) && layers.every((layer) => layer.q_heads % heads === 0));
  };
  const longest = (model) => model.position_rows || Infinity;
  const contextOf = (step) => step % 8 === 0 ? 2 ** (step / 8) : Math.round(2 ** (step / 8) / 16) * 16;
  const batchOf = (step) => step % 4 === 0 ? 2 ** (step / 4) : Math.max(1, Math.round(2 ** (step / 4)));
  // Of the slider: more than what is generated, and no more than the table of positions.
  const contextSteps = (model) => {
    let [from, to] = [64, 184];
    while (from > 0 && contextOf(from) > longest(model)) from--;
    while (from < to && contextOf(from) <= data.generated) from++;
    while (to > from && contextOf(to) > longest(model)) to--;
    return [from, to];
  };
  const exact = { context: null, batch: null };  // a row of the table: no slider's step
  const chosen = () => {
    const model = data.models[state.model], heads = powers(model);
    return { model, machine: data.machines[state.machine], context: exact.context ?? contextOf(state.context),
             batch: exact.batch ?? batchOf(state.batch), heads: heads[Math.min(state.heads, heads.length - 1)],
             type: data.types[state.type] };
  };
  const split = data.devices;
  const headsText = (c) => isLatent(c.model) ? "MLA" : c.heads + (c.heads === 1 ? " KV head" : " KV heads");
  const undivided = (model, heads) => Cost.withHeads(model, isLatent(model) ? null : heads);
  const variant = (model, heads) => {
    const made = undivided(model, heads);
    return split.split === "tensor" ? Cost.onOneDevice(made, split.count) : made;
  };
  const ofAll = split.count > 1 ? ", all devices" : "";
  const workOf = (context, batch, type, counting) => ({
    prompt: BigInt(Math.max(1, context - data.generated)), generated: BigInt(Math.min(data.generated, context - 1)),
    batch: BigInt(batch), chunk: BigInt(data.chunk), page: BigInt(data.page_tokens), kvType: type,
    triangle: counting === "triangle", prefillForm: data.prefill_form, decodeForm: data.decode_form,
    activationBytes: data.activation_bytes, scratchTokens: BigInt(data.scratch_tokens),
    scratchApart: data.scratch_apart, boundedWindows: data.bounded_windows,
    ring: split.split === "ring" ? BigInt(split.count) : 1n });

  const figuresOf = (model, work) => {
    const kv = Cost.kvCache(model, work), weights = Cost.weights(model), scratch = Cost.scratch(model, work);
    return { kv, weights, scratch, memory: kv + weights + scratch,
             prefill: Cost.kernels(model, work, "prefill"), decode: Cost.kernels(model, work, "decode") };
  };

  // --- svg ---
  const NS = "http://www.w3.org/2000/svg";
  const LETTER = 6;  // pixels of one in a label, about
  const node = (parent, name, attributes = {}, text) => {
    const made = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    parent.appendChild(made);
    return made;
  };
  const tip = at("tip");
  const showTip = (event, text) => {
    tip.textContent = text;
    tip.style.opacity = 1;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.min(event.clientX + 14, innerWidth - box.width - 8) + "px";
    tip.style.top = Math.max(8, event.clientY - box.height - 12) + "px";
  };
  const hideTip = () => { tip.style.opacity = 0; };

  // Axes of a plot: x and y are {from, to, text, ticks}, both logarithmic unless linear.
  const frame = (id, height, x, y, margin = { left: 58, right: 16, top: 14, bottom: 30 }) => {
    const home = at(id);
    home.textContent = "";
    const width = Math.max(280, home.clientWidth || 560);
    const svg = node(home, "svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-labelledby": id + "-title " + id + "-note" });
    const scale = (axis, low, high) => (value) => axis.linear
      ? low + (high - low) * (value - axis.from) / (axis.to - axis.from)
      : low + (high - low) * Math.log(value / axis.from) / Math.log(axis.to / axis.from);
    const X = scale(x, margin.left, width - margin.right), Y = scale(y, height - margin.bottom, margin.top);
    for (const tick of y.ticks) {
      node(svg, "line", { class: "grid", x1: margin.left, x2: width - margin.right, y1: Y(tick), y2: Y(tick) });
      node(svg, "text", { x: margin.left - 8, y: Y(tick) + 4, "text-anchor": "end" }, y.text(tick));
    }
    const every = Math.ceil(x.ticks.length / ((width - margin.left) / 58));
    x.ticks.forEach((tick, i) => {
      if (i % every === 0) node(svg, "text", { x: X(tick), y: height - 10, "text-anchor": "middle" }, x.text(tick));
    });
    node(svg, "line", { class: "axis", x1: margin.left, x2: width - margin.right, y1: height - margin.bottom, y2: height - margin.bottom });
    return { svg, X, Y, width, height, margin,
             back: (pixel) => x.from * Math.exp((pixel - margin.left) / (width - margin.right - margin.left) * Math.log(x.to / x.from)) };
  };
  const path = (plot, points, attributes) => node(plot.svg, "path", { fill: "none", "stroke-width": 2,
    d: points.map(([x, y], i) => (i ? "L" : "M") + plot.X(x).toFixed(1) + " " + plot.Y(y).toFixed(1)).join(""), ...attributes });
  const pointer = (plot, text) => {
    const cover = node(plot.svg, "rect", { x: plot.margin.left, y: plot.margin.top, fill: "transparent",
      width: plot.width - plot.margin.left - plot.margin.right, height: plot.height - plot.margin.top - plot.margin.bottom });
    const place = (event) => {
      const box = plot.svg.getBoundingClientRect();
      return plot.back((event.clientX - box.left) * plot.width / box.width);
    };
    cover.addEventListener("pointermove", (event) => showTip(event, text(Math.max(1, Math.round(place(event))))));
    cover.addEventListener("pointerleave", hideTip);
  };
  const decades = (from, to) => {
    const ticks = [];
    for (let e = Math.ceil(Math.log10(from) - 1e-9); 10 ** e <= to * 1.000001; e++) ticks.push(10 ** e);
    return ticks;
  };
  const lengths = [];
  for (let step = 64; step <= 184; step += 2) lengths.push(Math.round(2 ** (step / 8)));
  const lengthAxis = { from: lengths[0], to: lengths[lengths.length - 1], ticks: [256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304],
                       text: (n) => n >= 1048576 ? n / 1048576 + "Mi" : n >= 1024 ? n / 1024 + "Ki" : String(n) };
  const KINDS = [["projections", "projections", "--blue"], ["attention", "scores and weighted sums", "--orange"],
                 ["feedForward", "feed-forward", "--teal"], ["logits", "logits", "--plum"]];
  const legend = (id, items) => {
    at(id).textContent = "";
    for (const [name, colour] of items) {
      const item = document.createElement("span"), square = document.createElement("i");
      square.style.background = colour.startsWith("--") ? `var(${colour})` : colour;
      item.append(square, name);
      at(id).append(item);
    }
  };

  const lengthsOf = (model) => lengths.filter((n) => n <= Math.max(longest(model), lengths[1]));

  const drawShare = (c) => {
    const model = undivided(c.model, c.heads);
    const plot = frame("share", 300, lengthAxis, { linear: true, from: 0, to: 1, ticks: [0, .25, .5, .75, 1], text: (v) => v * 100 + " %" },
                       { left: 58, right: 16, top: 42, bottom: 30 });
    const reached = lengthsOf(c.model);
    const shares = reached.map((n) => {
      const f = Cost.flops(model, workOf(n, 1, c.type, state.counting), "prefill");
      return KINDS.map(([kind]) => Number(f[kind]) / Number(f.all));
    });
    let under = reached.map(() => 0);
    KINDS.forEach(([, , colour], k) => {
      const over = under.map((low, i) => low + shares[i][k]);
      const points = reached.map((n, i) => [n, over[i]]).concat(reached.map((n, i) => [n, under[i]]).reverse());
      path(plot, points, { fill: `var(${colour})`, "fill-opacity": .78, stroke: "var(--card)", "stroke-width": 1 });
      under = over;
    });
    // The left one's name ends at its line and the right one's begins at it, where there is room: neither crosses both.
    const work = workOf(c.context, 1, c.type, state.counting), notes = [];
    for (const [everything, name] of [[false, "= projections"], [true, "= with feed-forward"]]) {
      const turn = Cost.crossover(model, work, everything);
      notes.push((everything ? "projections and feed-forward at " : "Scores and weighted sums overtake the projections at ") +
                 (turn === null ? "no length (windows)" : whole(turn) + " tokens"));
      if (turn === null || Number(turn) < lengthAxis.from || Number(turn) > lengthAxis.to) continue;
      // Its name stands above the plot, where no colour is behind it.
      const x = plot.X(Number(turn)), low = everything ? 22 : 4;
      node(plot.svg, "line", { x1: x, x2: x, y1: 40, y2: 270, stroke: "var(--ink)", "stroke-dasharray": "4 3" });
      const label = tokens(Number(turn)) + " " + name, room = LETTER * label.length + 5;
      const before = everything ? x + room > plot.width : x > room;
      node(plot.svg, "text", { x: x + (before ? -5 : 5), y: low + 11, "text-anchor": before ? "end" : "start", class: "mark" },
        label);
    }
    at("share-note").textContent = notes.join("; ") + ".";
    legend("share-legend", KINDS.map(([, name, colour]) => [name, colour]));
    pointer(plot, (n) => {
      const f = Cost.flops(model, workOf(n, 1, c.type, state.counting), "prefill");
      return whole(n) + " tokens\n" + KINDS.map(([kind, name]) => (100 * Number(f[kind]) / Number(f.all)).toFixed(1) + " %  " + name).join("\n");
    });
  };

  const drawMemory = (c) => {
    const heads = isLatent(c.model) ? [c.heads] : [...new Set([c.model.layers[0].q_heads, ...data.heads_asked, c.heads, 1])]
      .filter((n) => powers(c.model).includes(n)).sort((a, b) => b - a).slice(0, 5);
    const colours = ["--orange", "--plum", "--teal", "--blue", "--soft"];
    const curves = heads.map((count, i) => ({ count, colour: colours[i % colours.length],
      points: lengthsOf(c.model).map((n) => [n, Number(Cost.kvCache(variant(c.model, count), workOf(n, c.batch, c.type, "full")))]).filter(([, v]) => v > 0) }));
    const values = curves.flatMap((curve) => curve.points.map(([, v]) => v));
    if (values.length === 0) {
      at("memory").textContent = "An encoder keeps no cache.";
      at("memory-note").textContent = "";
      return;
    }
    const from = 10 ** Math.floor(Math.log10(Math.min(...values))), to = 10 ** Math.ceil(Math.log10(Math.max(...values, c.machine.memory)));
    const plot = frame("memory", 300, lengthAxis, { from, to, ticks: decades(from, to), text: (v) => bytesText(v).replace(/\.0+ /, " ") },
                       { left: 64, right: 78, top: 14, bottom: 30 });
    const top = plot.Y(c.machine.memory);
    node(plot.svg, "rect", { x: 64, y: 14, width: plot.width - 142, height: Math.max(0, top - 14), fill: "var(--bad)", "fill-opacity": .07 });
    node(plot.svg, "line", { x1: 64, x2: plot.width - 78, y1: top, y2: top, stroke: "var(--bad)", "stroke-width": 1.5 });
    node(plot.svg, "text", { x: 70, y: top > 44 ? 28 : top - 5, style: "fill:var(--bad)" }, c.machine.name.slice(0, 34) + ": " + bytesText(c.machine.memory));
    let lowest = -1e9;
    curves.forEach((curve) => {
      const bold = curve.count === c.heads;
      path(plot, curve.points, { stroke: `var(${curve.colour})`, "stroke-width": bold ? 3 : 1.8 });
      const [x, y] = curve.points[curve.points.length - 1];
      lowest = Math.max(plot.Y(y) + 4, lowest + 15);
      node(plot.svg, "text", { x: plot.X(x) + 7, y: lowest, style: `fill:var(${curve.colour});font-weight:${bold ? 700 : 400}` },
        isLatent(c.model) ? "MLA" : curve.count + (curve.count === 1 ? " head" : " heads"));
    });
    const now = Number(Cost.kvCache(variant(c.model, c.heads), workOf(c.context, c.batch, c.type, "full")));
    const drawn = c.context >= lengthAxis.from && c.context <= lengthAxis.to && now > 0;
    if (drawn) {
      node(plot.svg, "circle", { cx: plot.X(c.context), cy: plot.Y(now), r: 5.5, fill: "var(--ink)", stroke: "var(--card)", "stroke-width": 2 });
    }
    at("memory-note").textContent = `${c.type.name}, batch ${whole(c.batch)}; ` +
      `${drawn ? "the dot is what the controls say" : "what the controls say is outside of the plot"}: ${bytesText(now)}.`;
    pointer(plot, (n) => whole(n) + " tokens\n" + curves.map((curve) => bytesText(Cost.kvCache(variant(c.model, curve.count),
      workOf(n, c.batch, c.type, "full"))) + "  " + (isLatent(c.model) ? "MLA" : curve.count + " KV heads")).join("\n"));
  };

  const drawRoof = (c, f) => {
    const ridge = c.machine.flops / c.machine.bandwidth;
    const from = .1, to = Math.max(1e5, 10 ** Math.ceil(Math.log10(ridge * 10)));
    const points = [];
    for (const [phase, { flops, bytes }, filled] of [["prefill", f.prefill, true], ["decode", f.decode, false]]) {
      for (const [kind, name, colour] of KINDS) {
        if (flops[kind] === 0n || bytes[kind] === 0n) continue;
        const intensity = Number(flops[kind]) / Number(bytes[kind]);
        points.push({ phase, name, colour, filled, intensity, rate: Math.min(c.machine.flops, intensity * c.machine.bandwidth) });
      }
    }
    const low = 10 ** Math.floor(Math.log10(c.machine.bandwidth * from)), high = 10 ** Math.ceil(Math.log10(c.machine.flops * 1.5));
    const rate = (v) => scaled(v, ["FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s"]).replace(/\.0+ /, " ");
    const plot = frame("roof", 300, { from, to, ticks: decades(from, to), text: (v) => v >= 1000 ? v / 1000 + "k" : String(v) },
                       { from: low, to: high, ticks: decades(low, high), text: rate }, { left: 84, right: 16, top: 14, bottom: 30 });
    path(plot, [[from, from * c.machine.bandwidth], [ridge, c.machine.flops], [to, c.machine.flops]], { stroke: "var(--ink)" });
    node(plot.svg, "text", { x: plot.width - 18, y: plot.Y(c.machine.flops) - 12, "text-anchor": "end", class: "mark" }, rate(c.machine.flops));
    node(plot.svg, "text", { x: plot.X(ridge), y: plot.Y(c.machine.flops) + 24, class: "mark" }, three(ridge) + " FLOPs a byte");
    for (const p of points) {
      const x = plot.X(Math.min(Math.max(p.intensity, from), to)), y = plot.Y(Math.max(p.rate, low));
      const shape = node(plot.svg, "circle", { cx: x, cy: y, r: 6.5, fill: p.filled ? `var(${p.colour})` : "var(--card)", stroke: `var(${p.colour})`, "stroke-width": 2.5 });
      shape.addEventListener("pointermove", (event) => showTip(event, `${p.phase}, ${p.name}\n${three(p.intensity)} FLOPs a byte\nat most ${rate(p.rate)}`));
      shape.addEventListener("pointerleave", hideTip);
    }
    at("roof-note").textContent = "FLOPs a byte (across) against the rate they can run at. Filled: prefill; open: one decode step.";
    legend("roof-legend", KINDS.map(([, name, colour]) => [name, colour]));
  };

  const drawBar = (c, f) => {
    const home = at("bar");
    home.textContent = "";
    const width = Math.max(280, home.clientWidth || 560), all = Math.max(Number(f.memory), c.machine.memory) * 1.02;
    const svg = node(home, "svg", { viewBox: `0 0 ${width} 58`, height: 58, role: "img", "aria-labelledby": "bar-title bar-note" });
    let x = 0;
    const parts = [["weights", f.weights, "--blue"], ["KV cache", f.kv, "--orange"], ["scratch", f.scratch, "--teal"]];
    for (const [, bytes, colour] of parts) {
      const w = width * Number(bytes) / all;
      node(svg, "rect", { x, y: 18, width: Math.max(0, w - 1), height: 32, rx: 3, fill: `var(${colour})` });
      x += w;
    }
    const end = width * c.machine.memory / all;
    node(svg, "line", { x1: end, x2: end, y1: 10, y2: 58, stroke: "var(--ink)", "stroke-width": 2 });
    const label = bytesText(c.machine.memory), before = end > LETTER * label.length + 5;  // else it begins at the line
    node(svg, "text", { x: end + (before ? -5 : 5), y: 12, "text-anchor": before ? "end" : "start", class: "mark" }, label);
    legend("bar-legend", parts.map(([name, bytes, colour]) => [`${name} ${bytesText(bytes)}`, colour]));
    at("bar-note").textContent = `${bytesText(f.memory)} (${binaryText(f.memory)}) of ${bytesText(c.machine.memory)} (${binaryText(c.machine.memory)}).`;
  };

  const cells = (row, texts, numbers) => texts.forEach((text, i) => {
    const cell = row.insertCell();
    cell.textContent = text;
    if (numbers.includes(i)) cell.className = "number";
  });

  const drawTables = (c, f) => {
    const exactly = at("exact");
    exactly.textContent = "";
    const flops = split.count > 1 ? "FLOPs a device" : "FLOPs";
    const rows = [["KV cache", f.kv, "bytes"], ["weights", f.weights, "bytes"], ["scratch (estimate)", f.scratch, "bytes"],
      ["prefill: projections", f.prefill.flops.projections, flops],
      ["prefill: scores, weighted sums", f.prefill.flops.attention, flops],
      ["prefill: feed-forward", f.prefill.flops.feedForward, flops], ["prefill: all", f.prefill.flops.all, flops],
      ["decode step: all", f.decode.flops.all, flops], ["decode step reads and writes", f.decode.bytes.all, "bytes"]];
    for (const [name, value, unit] of rows) {
      const row = exactly.insertRow();
      cells(row, [name, "", unit], [1]);
      // Where there is little room a number breaks behind a comma, between its groups of digits.
      whole(value).split(/(?<=,)/).forEach((group) => row.cells[1].append(group, document.createElement("wbr")));
    }
  };

  const fill = () => {
    const c = chosen(), model = variant(c.model, c.heads), work = workOf(c.context, c.batch, c.type, state.counting);
    const f = figuresOf(model, work), m = c.machine;
    at("context-shown").textContent = whole(c.context);
    at("batch-shown").textContent = whole(c.batch);
    at("heads-shown").textContent = isLatent(c.model) ? "MLA" : String(c.heads);
    at("heads").disabled = isLatent(c.model);
    at("type").disabled = c.model.layers.every((layer) => layer.attends === "all");  // an encoder keeps no cache
    at("title").textContent = c.model.name;
    at("shape").textContent = c.model.shape + (split.count > 1 ? `; ${split.count} devices (${split.split} split): bytes and times of each, shares and attention of all` : "");
    const memory = Number(f.memory), fits = memory <= m.memory;
    at("verdict").className = fits ? "fits" : "not";
    at("verdict").textContent = fits
      ? `Fits: ${bytesText(f.memory)} of ${bytesText(m.memory)}`
      : Number(f.kv) > m.memory ? `Does not fit: ${bytesText(f.kv)} of KV against ${bytesText(m.memory)}`
      : Number(f.weights) > m.memory ? `Does not fit: ${bytesText(f.weights)} of weights against ${bytesText(m.memory)}`
      : `Does not fit: ${bytesText(f.memory)} against ${bytesText(m.memory)}`;
    const more = document.createElement("small");
    more.textContent = `${whole(c.context)} tokens, batch ${whole(c.batch)}, ${headsText(c)}, ${c.type.name}: ` +
      `weights ${bytesText(f.weights)} + KV ${bytesText(f.kv)} + scratch ${bytesText(f.scratch)} on ${m.name}`;
    at("verdict").append(more);
    const all = Cost.flops(undivided(c.model, c.heads), work, "prefill"), attention = all.projections + all.attention;
    const prefill = Cost.seconds(f.prefill, m), decode = Cost.seconds(f.decode, m);
    at("figures").textContent = "";
    for (const [value, name] of [[bytesText(f.kv), `KV cache, ${binaryText(f.kv)}`], [bytesText(f.memory), `in all, ${binaryText(f.memory)}`],
      [flopText(attention), "attention of prefill" + ofAll], [time(prefill), "prefill, at the roofline"],
      [decode > 0 ? scaled(c.batch / decode, ["", "k", "M", "G"]) : "-", "tokens/s decoded, at the roofline"],
      [(100 * Number(all.attention) / Number(all.all)).toFixed(1) + " %", "of prefill is scores"]]) {
      const box = document.createElement("div"), number = document.createElement("b"), what = document.createElement("span");
      box.className = "figure card";
      number.textContent = value;
      what.textContent = name;
      box.append(number, what);
      at("figures").append(box);
    }
    drawShare(c);
    drawMemory(c);
    drawRoof(c, f);
    drawBar(c, f);
    drawTables(c, f);
  };

  // --- the page against the program ---
  const check = () => {
    const wrong = [];
    for (const known of data.checks) {
      const model = variant(data.models[known.model], known.kv_heads);
      const work = workOf(known.context, known.batch, data.types[known.type], "full");
      const f = figuresOf(model, work), machine = data.machines[data.machine];
      const triangle = Cost.kernels(model, { ...work, triangle: true }, "prefill");
      const made = { kv: f.kv, weights: f.weights, scratch: f.scratch, prefill_projections: f.prefill.flops.projections,
        prefill_attention: f.prefill.flops.attention, prefill_all: f.prefill.flops.all,
        triangle_attention: triangle.flops.attention, decode_all: f.decode.flops.all,
        prefill_bytes: f.prefill.bytes.all, decode_bytes: f.decode.bytes.all,
        prefill_seconds: Cost.seconds(f.prefill, machine), decode_seconds: Cost.seconds(f.decode, machine) };
      for (const [key, value] of Object.entries(made)) {
        if (value.toString() !== String(known[key])) wrong.push(`${key} of model ${known.model}, ${known.context} tokens: ${value} here, ${known[key]} there`);
      }
    }
    document.documentElement.dataset.check = wrong.length ? "differs: " + wrong.slice(0, 5).join("; ") : "equal " + data.checks.length;
    at("checked").textContent = wrong.length ? "The page's arithmetic differs from the program's: " + wrong[0]
      : `The page's arithmetic equals the program's in all ${data.checks.length} workloads it was given.`;
  };

  const option = (id, texts) => texts.forEach((text, i) => {
    const made = document.createElement("option");
    made.value = i;
    made.textContent = text;
    at(id).append(made);
  });
  const setUp = () => {
    option("model", data.models.map((model) => model.name));
    option("machine", data.machines.map((machine) => machine.name));
    option("type", data.types.map((type) => type.name));
    const modelSteps = () => {
      const model = data.models[state.model], heads = powers(model);
      at("heads").max = heads.length - 1;
      state.heads = Math.max(0, heads.indexOf(model.layers[0].kv_heads));
      at("heads").value = state.heads;
      const [from, to] = contextSteps(model);
      at("context").min = from;
      at("context").max = to;
      if (exact.context > longest(model)) exact.context = null;
      state.context = Math.min(Math.max(state.context, from), to);
      at("context").value = state.context;
    };
    const look = (row) => {
      state.model = row.model;
      modelSteps();
      state.heads = Math.max(0, powers(data.models[row.model]).indexOf(row.kv_heads));
      state.type = row.type;
      exact.context = row.context;
      exact.batch = row.batch;
      state.context = Math.round(8 * Math.log2(row.context));
      state.batch = Math.round(4 * Math.log2(row.batch));
      for (const id of ["model", "type", "heads", "context", "batch"]) at(id).value = state[id];
      fill();
    };
    // As the command counts it, whatever the control says now.
    const attention = "attention of prefill, " + (data.counting === "full" ? "in full" : "visible pairs") + ofAll;
    const asked = at("asked"), head = asked.createTHead().insertRow();
    ["model", "KV heads", "KV type", "batch", "context", "KV cache", "in all", attention, ""].forEach((text, i) => {
      const cell = document.createElement("th");
      cell.textContent = text;
      if ([1, 3, 4, 5, 6, 7].includes(i)) cell.className = "number";
      head.append(cell);
    });
    const body = asked.createTBody();
    for (const row of data.rows) {
      const line = body.insertRow();
      cells(line, [data.models[row.model].name, row.heads, data.types[row.type].name, whole(row.batch), whole(row.context),
                   bytesText(row.kv), bytesText(row.memory), flopText(row.attention), row.verdict], [1, 3, 4, 5, 6, 7]);
      const button = document.createElement("button");
      button.type = "button";
      button.className = "row";
      button.textContent = line.cells[0].textContent;
      line.cells[0].replaceChildren(button);
      line.addEventListener("click", () => look(row));
    }
    for (const id of ["context", "batch", "heads", "type", "model", "machine"]) {
      at(id).addEventListener("input", () => {
        state[id] = Number(at(id).value);
        if (id in exact) exact[id] = null;
        if (id === "model") modelSteps();
        fill();
      });
    }
    at("counting").value = state.counting;
    at("counting").addEventListener("input", () => { state.counting = at("counting").value; fill(); });
    const dark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
    const name = () => { at("theme").textContent = dark() ? "light" : "dark"; };
    at("theme").addEventListener("click", () => { document.documentElement.dataset.theme = dark() ? "light" : "dark"; name(); });
    name();
    state.machine = data.machine;
    at("machine").value = state.machine;
    at("assumptions").textContent = data.assumptions;
    addEventListener("resize", fill);
    check();
    look(data.rows[data.first]);
  };
  setUp();
})();
