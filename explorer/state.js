// What is shown, kept in the address after "#", so that a view can be sent to somebody or come back to.

const kViews = [["heads", "Heads"], ["head", "One head"], ["compare", "Compare two"], ["query", "One query"],
  ["about", "About"]];

const kDefaults = {v: "heads", a: "0.0", b: "0.0", q: null, k: null, w: "raw", m: "ind", z: "0", t: null,
  r: "layer", c: "maps", role: null, s: "sqrt", d: "out"};

/** a, b: "layer.head"; q, k: locked query and key; w: weights; m: measure; z: "0", or "q0,k0,n" of a window of tokens;
    t: theme; r: arrangement; c: what cells show; role: the one that is not dimmed; s: colour scale; d: direction. */
class State {
  constructor(source, onChange) {
    Object.assign(this, {source, onChange, foreign: false});
    this.current = this.read(location.hash);
    addEventListener("hashchange", this.listener = () => {
      const next = this.read(location.hash);
      if (!this.foreign && this.write(next) === this.write(this.current)) return;
      const before = this.current;
      this.current = next;
      this.onChange(next, before);
    });
  }

  /** Changes some of it. A new view is a step of the history, anything else replaces the last step. */
  set(changes) {
    const before = this.current;
    this.current = this.checked({...before, ...changes});
    this.foreign = false;
    const hash = this.write(this.current);
    if (hash !== this.write(before)) {
      history[this.current.v !== before.v ? "pushState" : "replaceState"](null, "", hash);
    }
    this.onChange(this.current, before);
  }

  write(state) {
    const parts = Object.entries(state).filter(([key, value]) => value !== null && value !== this.defaults()[key])
      .map(([key, value]) => `${key}=${encodeURIComponent(value)}`);
    return `#${[`v=${state.v}`, ...parts.filter((p) => !p.startsWith("v=")), `f=${this.source.meta.file}`].join("&")}`;
  }

  read(hash) {
    const given = Object.fromEntries(new URLSearchParams(hash.slice(1)));
    this.foreign = hash.length > 1 && given.f !== this.source.meta.file;
    if (this.foreign) return this.defaults();
    const known = Object.fromEntries(Object.entries(given).filter(([key]) => key in kDefaults));
    return this.checked({...this.defaults(), ...known});
  }

  /** Heads that deserve the first look: the strongest induction head and the strongest previous-token head. */
  defaults() {
    if (!this.first) {
      const best = (field) => {
        const values = this.source.meta.measures[field] ?? [];
        const at = values.reduce((a, x, i) => (x !== null && (a < 0 || x > values[a]) ? i : a), -1);
        return Math.max(at, 0);
      };
      const name = (index) => `${Math.floor(index / this.source.heads)}.${index % this.source.heads}`;
      this.first = {...kDefaults, a: name(best("induction")), b: name(best("previous"))};
    }
    return this.first;
  }

  /** Whatever somebody wrote, every part is in range. */
  checked(state) {
    const {source} = this, within = (x, n) => (x === null || !/^\d+$/.test(x) || x >= n ? null : Number(x));
    const among = (value, list, or) => (list.includes(value) ? value : or);
    const head = (text, or) => {
      const [l, h] = String(text).split(".").map(Number);
      return l >= 0 && l < source.layers && h >= 0 && h < source.heads && Number.isInteger(l) && Number.isInteger(h)
        ? `${l}.${h}` : or;
    };
    const window = String(state.z).split(",").map(Number);
    return {...state,
      v: among(state.v, kViews.map((v) => v[0]), "heads"),
      a: head(state.a, this.defaults().a), b: head(state.b, this.defaults().b),
      q: within(state.q, source.nq), k: within(state.k, source.nk),
      w: among(state.w, this.modes().map((m) => m[0]), "raw"),
      m: among(state.m, kMeasures.map((m) => m[0]), "ind"),
      z: window.length === 3 && window.every((x) => Number.isInteger(x) && x >= 0) && window[2] > 0
        ? window.join(",") : "0",
      t: among(state.t, ["light", "dark"], null),
      r: among(state.r, ["layer", "ranked"], "layer"), c: among(state.c, ["maps", "values"], "maps"),
      role: among(state.role, kRoles.map((r) => r[0]).filter((r) => source.meta.roles.includes(r)), null),
      s: among(state.s, ["sqrt", "linear"], "sqrt"),
      d: among(state.d, ["out", "in"], "out")};
  }

  /** A text without its first key makes sense where every query sees that key. */
  modes() {
    return kModes.filter(([id]) => id !== "nofirst" || (this.source.causal && this.source.nk > 1));
  }

  stop() {
    removeEventListener("hashchange", this.listener);
  }
}

const headOf = (text) => text.split(".").map(Number);
