// Colour scales in OKLCH: lightness carries the weight and is monotone, so every kind of colour vision reads it.

/** OKLCH (lightness 0-1, chroma, hue in degrees) to sRGB bytes; chroma shrinks until the colour exists. */
function oklch(lightness, chroma, hue) {
  for (let c = chroma; ; c = Math.max(0, c - 0.004)) {
    const rgb = linearRgb(lightness, c, hue);
    if (c === 0 || rgb.every((x) => x >= -1e-4 && x <= 1.0001)) {
      return rgb.map((x) => Math.round(255 * gamma(clamp(x, 0, 1))));
    }
  }
}

const gamma = (x) => (x <= 0.0031308 ? 12.92 * x : 1.055 * x ** (1 / 2.4) - 0.055);

// Ottosson 2020, "A perceptual color space for image processing".
function linearRgb(lightness, chroma, hue) {
  const a = chroma * Math.cos(hue * Math.PI / 180), b = chroma * Math.sin(hue * Math.PI / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3;
  return [4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s];
}

const linearOf = (rgb) => rgb.map((x) => (x <= 10 ? x / 3294.6 : ((x / 255 + 0.055) / 1.055) ** 2.4));

const mix = (a, b, t) => a + (b - a) * t;

/** 256 colours from nothing to all, as 32-bit pixels (little-endian RGBA) and as CSS; `dark`: white is read better on it
    than black (either has a contrast of 4.5 or more). */
function makeScale(colourAt) {
  const pixels = new Uint32Array(256), css = [], dark = [];
  for (let i = 0; i < 256; i++) {
    const {lightness, chroma, hue} = colourAt(i / 255);
    const [r, g, b] = oklch(lightness, chroma, hue);
    pixels[i] = (255 << 24 | b << 16 | g << 8 | r) >>> 0;
    css.push(`rgb(${r} ${g} ${b})`);
    const [x, y, z] = linearOf([r, g, b]);
    dark.push(0.2126 * x + 0.7152 * y + 0.0722 * z < 0.179);
  }
  return {pixels, css, dark};
}

const bump = (t) => Math.sin(Math.PI * Math.min(1, t));  // chroma: little at both ends, most in the middle

/** The scales of a theme: weights, and for differences A's side (blue) and B's (orange). */
function themeScales(theme) {
  const light = theme === "light";
  const weights = light
    ? (t) => ({lightness: mix(0.99, 0.27, t), chroma: 0.005 + 0.155 * bump(0.12 + 0.76 * t), hue: mix(248, 266, t)})
    : (t) => ({lightness: mix(0.20, 0.97, t), chroma: 0.03 + 0.13 * bump(0.1 + 0.75 * t),
      hue: t < 0.55 ? mix(262, 225, t / 0.55) : mix(225, 105, (t - 0.55) / 0.45)});
  const side = (hue) => (t) => ({lightness: light ? mix(0.97, 0.38, t) : mix(0.25, 0.88, t),
    chroma: 0.165 * Math.min(1, t * 1.4), hue});
  const unseen = light ? [236, 237, 241] : [43, 46, 54];
  return {weights: makeScale(weights), a: makeScale(side(256)), b: makeScale(side(52)),
    unseen: (255 << 24 | unseen[2] << 16 | unseen[1] << 8 | unseen[0]) >>> 0, unseenCss: `rgb(${unseen.join(" ")})`};
}

/** Place of a weight on a scale of 256: by its square root, or linear. */
const scaleIndex = (weight, linear) => Math.round(255 * (linear ? clamp(weight, 0, 1)
  : Math.sqrt(clamp(weight, 0, 1))));
