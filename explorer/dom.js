// Making elements. Text always enters as text nodes: nothing from a model or a text is ever parsed as HTML.

/** An element; props: class, style (object), dataset (object), on (object of listeners), anything else an attribute. */
function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") node.className = value;
    else if (name === "style") for (const [key, v] of Object.entries(value)) node.style.setProperty(key, v);
    else if (name === "dataset") Object.assign(node.dataset, value);
    else if (name === "on") for (const [event, f] of Object.entries(value)) node.addEventListener(event, f);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

function replace(node, ...children) {
  node.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined));
}

/** A labelled select; options: [value, text][]. onChange gets the value. */
class Choice {
  constructor(label, options, onChange) {
    this.select = el("select", {on: {change: () => onChange(this.select.value)}});
    this.element = el("label", {class: "choice"}, el("span", {}, label), this.select);
    this.fill(options);
  }

  fill(options) {
    replace(this.select, options.map(([value, text]) => el("option", {value}, text)));
  }

  set(value) {
    if (this.select.value !== String(value)) this.select.value = String(value);
  }
}

/** A table with a caption for those who hear it; columns: [title, class][]; rows: arrays of cells. */
function table(caption, columns, rows, {visibleCaption = false, rowProps = null} = {}) {
  const cell = (content, n) => {
    const node = n === 0 ? el("th", {scope: "row", class: columns[n][1]}) : el("td", {class: columns[n][1]});
    node.append(...[content].flat().map((c) => (c instanceof Node ? c : String(c ?? ""))));
    return node;
  };
  return el("table", {},
    el("caption", {class: visibleCaption ? "" : "unseen"}, caption),
    el("thead", {}, el("tr", {}, columns.map(([title, style]) => el("th", {scope: "col", class: style}, title)))),
    el("tbody", {}, rows.map((row, n) => el("tr", rowProps ? rowProps(n) : {}, row.map(cell)))));
}

const number = (x, digits = 2) => (x === null || x === undefined || Number.isNaN(x) ? "not measurable"
  : x.toFixed(digits));

/** ".77" and "1": for places where room is short. */
function shortNumber(x) {
  if (x >= 0.995) return "1";
  return x.toFixed(2).replace(/^0/, "");
}

const clamp = (x, low, high) => Math.min(Math.max(x, low), high);
