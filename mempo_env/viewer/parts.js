// Parts that any page can use: elements, numbers, the page's data, differences of words, a chart.
// Text from the data becomes text nodes and attributes of elements made here; markup is never parsed.

const HIDDEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f\u202a-\u202e\u2066-\u2069]/g;

/** The text, with characters that hide or reorder others shown by their number. */
const visible = (text) =>
  text.replace(HIDDEN, (c) => `⟨U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);

const fill = (node, props, children) => {
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) {
      node.setAttribute(name, value === true ? "" : visible(String(value)));
    }
  }
  const shown = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
  node.append(...shown.map((child) => (child instanceof Node ? child : visible(String(child)))));
  return node;
};

/** An element; children are nodes or texts, nested lists of them, or nothing (null, undefined, false). */
const h = (tag, props = {}, ...children) => fill(document.createElement(tag), props, children);

const svg = (tag, props = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);

const byId = (id) => document.getElementById(id);

/** The JSON of the page's data element. */
const load = async () => {
  const element = byId("data");
  if (element.type === "application/json") return JSON.parse(element.textContent);
  const packed = atob(element.textContent);
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < packed.length; i++) bytes[i] = packed.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
};

const format = (digits) => {
  const style = new Intl.NumberFormat("en-US", { maximumFractionDigits: digits });
  return (value) => (value === null || value === undefined ? "–" : style.format(value).replace("-", "−"));
};
const whole = format(0);
const decimal = format(2);
const compact = (value) =>
  value < 1e6 ? whole(value) : value.toLocaleString("en-US", { notation: "compact", maximumFractionDigits: 2 });
const percent = (share) => (share === null ? "–" : `${whole(Number((100 * share).toPrecision(12)))} %`);
const plural = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
const spaced = (word) => word.replaceAll("_", " ");

/** Case and diacritics folded, for searching. */
const folded = (text) => text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();

/** Most cells of the table that a difference of words may fill; above it, all in between has changed. */
const CELLS = 4e6;

/** Function (i, j): length of the longest common subsequence of a[i:] and b[j:], lists of {key}. */
const commonLength = (a, b) => {
  const wide = b.length + 1, table = new Uint32Array((a.length + 1) * wide);
  const at = (i, j) => table[i * wide + j];
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      table[i * wide + j] = a[i].key === b[j].key ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1));
    }
  }
  return at;
};

/** What turns `before` into `after`, word by word: [["same" | "del" | "ins", text], ...]. */
const difference = (before, after) => {
  const words = (text) => text.match(/\s*\S+\s*/g)?.map((text) => ({ text, key: text.trim() })) ?? [];
  const [a, b] = [words(before), words(after)], least = Math.min(a.length, b.length);
  let head = 0, tail = 0;
  while (head < least && a[head].key === b[head].key) head++;
  while (tail < least - head && a.at(-1 - tail).key === b.at(-1 - tail).key) tail++;
  const [from, to] = [a.slice(head, a.length - tail), b.slice(head, b.length - tail)];
  const fits = (from.length + 1) * (to.length + 1) <= CELLS;
  const common = fits ? commonLength(from, to) : () => 0;
  const runs = [];
  const add = (kind, { text }) => (runs.at(-1)?.[0] === kind ? (runs.at(-1)[1] += text) : runs.push([kind, text]));
  b.slice(0, head).forEach((word) => add("same", word));
  let i = 0, j = 0;
  while (i < from.length || j < to.length) {
    const [left, right] = [i < from.length, j < to.length];
    if (fits && left && right && from[i].key === to[j].key) { add("same", to[j++]); i++; }
    else if (left && (!right || common(i + 1, j) >= common(i, j + 1))) add("del", from[i++]);
    else add("ins", to[j++]);
  }
  b.slice(b.length - tail).forEach((word) => add("same", word));
  return runs;
};

/** The text with every occurrence of one of the passages in it, up to white space, marked. */
const marked = (text, passages) => {
  const escaped = passages.map((passage) =>
    passage.trim().split(/\s+/).map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("\\s+"));
  const pattern = escaped.filter((part) => part).join("|");
  if (!pattern) return [text];
  return text.split(new RegExp(`(${pattern})`)).map((part, i) => (i % 2 ? h("mark", {}, part) : part));
};

/** The least of 1, 2, 5, 10, 20 ... that is no less than the value. */
const ceiling = (value) => {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 2, 5, 10].map((step) => step * power).find((top) => top >= value);
};

/**
 * Bars side by side for each of `columns` = [{label, values}]; the class of bar i is `bar-i`. `label` tells the
 * chart in words, `pick(column)` answers a click. Returns an SVG element of the given width in pixels.
 */
const chart = (columns, width, label, pick) => {
  const [left, top, bottom, high] = [46, 8, 118, 140];
  const step = Math.max(1, Math.min(88, (width - left) / columns.length));
  const most = ceiling(Math.max(...columns.flatMap((column) => column.values), 1));
  const y = (value) => bottom - ((bottom - top) * value) / most;
  const every = Math.ceil(24 / step);
  const grid = [0, most / 2, most].map((value) => [
    svg("line", { x1: left, x2: width, y1: y(value), y2: y(value), class: "grid" }),
    svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, decimal(value)),
  ]);
  const column = ({ label, values }, i) => {
    const x = left + i * step, bar = Math.min(step * 0.8, 56) / values.length;
    return svg("g", { class: "column", onclick: () => pick(i) },
      svg("title", {}, label),
      svg("rect", { class: "back", x, y: 0, width: step, height: high }),
      values.map((value, v) => svg("rect", {
        class: `bar-${v}`, width: bar * 0.92, height: bottom - y(value),
        x: x + step / 2 + (v - values.length / 2) * bar, y: y(value),
      })),
      i % every === 0 && svg("text", { x: x + step / 2, y: high - 6, "text-anchor": "middle" }, i + 1));
  };
  return svg("svg", { width, height: high, role: "img", "aria-label": label }, grid, columns.map(column));
};
