// Pixels of maps. A map is shrunk by its maximum and grown without blurring.

/** A canvas of so many CSS pixels, sharp on the screen at hand. */
function sizeCanvas(canvas, width, height) {
  const ratio = Math.min(window.devicePixelRatio || 1, 3);
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  return ratio;
}

/** Pixels of bins: `indexOf(bin)` is the place on `pixels` (a scale), or negative for its second scale. */
function mapImage(bq, bk, size, seen, unseen, colourOf) {
  const {width, height} = size, image = new ImageData(width, height), out = new Uint32Array(image.data.buffer);
  const start = (n, bins, all) => Math.floor(n * bins / all);
  const columns = Uint32Array.from({length: width + 1}, (_, x) => start(x, bk, width));
  for (let y = 0, above = -1; y < height; y++) {
    const r0 = start(y, bq, height), r1 = Math.max(r0 + 1, start(y + 1, bq, height));
    if (r0 === above) {  // a bin is several pixels high: the line above again
      out.copyWithin(y * width, (y - 1) * width, y * width);
      continue;
    }
    above = r1 === r0 + 1 ? r0 : -1;
    for (let x = 0; x < width; x++) {
      const c0 = columns[x], c1 = Math.max(c0 + 1, columns[x + 1]);
      let best = -1;
      for (let r = r0; r < r1; r++) {
        for (let c = c0; c < c1; c++) {
          const at = r * bk + c;
          if (seen[at] && (best < 0 || colourOf.size(at) > colourOf.size(best))) best = at;
        }
      }
      out[y * width + x] = best < 0 ? unseen : colourOf.pixel(best);
    }
  }
  return image;
}

/** Colours of weights. */
function weightColours(values, scale, linear) {
  return {size: (at) => values[at], weight: (at) => values[at],
    pixel: (at) => scale.pixels[scaleIndex(values[at], linear)]};
}

/** Colours of bytes that are square roots already (thumbnails, pooled maps). */
function rootColours(bytes, scale) {
  return {size: (at) => bytes[at], weight: (at) => (bytes[at] / 255) ** 2, pixel: (at) => scale.pixels[bytes[at]]};
}

/** Colours of differences: A's side where A is larger. */
function differenceColours(values, scales, linear) {
  return {size: (at) => Math.abs(values[at]), weight: (at) => Math.abs(values[at]),
    pixel: (at) => (values[at] >= 0 ? scales.a : scales.b)
    .pixels[scaleIndex(Math.abs(values[at]), linear)]};
}

/** A legend: the scale with its ticks. */
function legend(scale, linear, width = 150) {
  const canvas = el("canvas", {role: "img", "aria-label":
    `Colour scale from 0 to 1, ${linear ? "linear" : "by square root"}`});
  const ratio = sizeCanvas(canvas, width, 12), context = canvas.getContext("2d");
  for (let x = 0; x < canvas.width; x++) {
    context.fillStyle = scale.css[Math.round(255 * x / (canvas.width - 1))];
    context.fillRect(x, 0, 1, 12 * ratio);
  }
  const ticks = (linear ? [0, 0.25, 0.5, 0.75, 1] : [0, 0.05, 0.25, 0.5, 1]).map((w) => el("span",
    {style: {left: `${100 * scaleIndex(w, linear) / 255}%`}}, String(w).replace("0.", ".")));
  return el("div", {class: "legend", style: {width: `${width}px`}}, canvas, el("div", {class: "ticks"}, ticks));
}
