// Plots as SVG at a given width in pixels. An arm is {label, style, ...}; `style` is the class that sets its colour.

const AXIS = 12, ROW = 28;
const wideAs = (text) => 6.9 * text.length;
const cut = (text, most) => (text.length <= most ? text : `${text.slice(0, most - 1)}…`);

/** About `count` round numbers from `low` to `high`. */
const ticks = ([low, high], count) => {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((s) => s * power).find((s) => s >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
};

/** A tick as it is: 0.025 is not 0.03. */
const exact = format(6);

/** From 0, or the least value, to a little above the greatest. */
const extent = (values) => {
  const [low, high] = [Math.min(0, ...values), Math.max(0, ...values)], room = (high - low || 1) * 0.04;
  return [low && low - room, high || !low ? high + room : 0];
};

const scale = ([low, high], from, to) => (value) => from + ((to - from) * (value - low)) / (high - low);

const picture = (width, height, label, ...children) =>
  svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...children);

/** Labels on the left of horizontal rows: [the width that they take, a function (text, row) => node]. */
const rowLabels = (texts, width) => {
  const left = Math.min(Math.max(...texts.map(wideAs)) + 14, width * 0.42), most = Math.floor((left - 12) / 6.9);
  return [left, (text, i) => svg("text", { x: 0, y: i * ROW + ROW / 2 + 4, class: "name" }, svg("title", {}, text), cut(text, most))];
};

const chance = (p) => (p < 0.001 ? "<0.001" : p < 0.1 ? String(Math.floor(1000 * p) / 1000) : fixed(2)(p));

const about = (interval, show) =>
  interval.low === null ? show(interval.value) : `${show(interval.value)}, 95 % interval ${show(interval.low)} to ${show(interval.high)}`;

/** Means with their intervals, a row each. `rows` = [{label, style, interval, p}], p only of differences; `show` and `tick` format numbers. */
const intervals = (rows, width, show, { bounds = null, tick = exact, label }) => {
  const known = rows.filter((row) => row.interval);
  const values = known.flatMap(({ interval: { value, low, high } }) => [value, low ?? value, high ?? value]);
  const domain = bounds ?? extent(values), marks = ticks(domain, width < 420 ? 3 : 5);
  const [left, name] = rowLabels(rows.map((row) => row.label), width);
  const x = scale(domain, left + 8, width - (known.some(({ p }) => p !== undefined) ? 72 : 24)), bottom = rows.length * ROW + 4;
  const one = (row, i) => {
    const y = i * ROW + ROW / 2;
    if (!row.interval) return svg("text", { x: left + 8, y: y + 4 }, "–");
    const { value, low, high } = row.interval;
    return svg("g", { class: row.style },
      svg("title", {}, `${row.label}: ${about(row.interval, show)}${row.p === undefined ? "" : `, p ${chance(row.p)}`}`),
      svg("rect", { class: "hover", x: 0, y: i * ROW, width, height: ROW }),
      row.p !== undefined && svg("text", { class: row.p < 0.05 ? "name" : null, x: width, y: y + 4, "text-anchor": "end" }, `p ${chance(row.p)}`),
      low !== null && svg("line", { class: "whisker", x1: x(low), x2: x(high), y1: y, y2: y }),
      svg("circle", { class: "mean", cx: x(value), cy: y, r: 4.5 }));
  };
  return picture(width, bottom + AXIS + 10, label,
    marks.map((mark) => [
      svg("line", { class: mark === 0 ? "zero" : "gridline", x1: x(mark), x2: x(mark), y1: 0, y2: bottom }),
      svg("text", { x: x(mark), y: bottom + AXIS + 4, "text-anchor": "middle" }, tick(mark)),
    ]),
    rows.map((row, i) => name(row.label, i)), rows.map(one));
};

/** Shares that sum to 1, a row each. `rows` = [{label, shares: [[name, share], ...]}]. */
const stacks = (rows, width, label) => {
  const [left, name] = rowLabels(rows.map((row) => row.label), width);
  const x = scale([0, 1], left + 8, width - 2);
  const one = (row, i) => {
    let sum = 0;
    return row.shares.map(([reason, share]) => {
      const start = x(sum), end = x((sum += share));
      return svg("g", { class: reason },
        svg("title", {}, `${row.label}: ${spaced(reason)} ${percent(share)}`),
        svg("rect", { class: "share", x: start, y: i * ROW + 4, width: Math.max(end - start - 1, 0.5), height: ROW - 8, rx: 2 }),
        end - start > 34 && svg("text", { class: "on", x: (start + end) / 2, y: i * ROW + ROW / 2 + 4, "text-anchor": "middle" }, percent(share)));
    });
  };
  return picture(width, rows.length * ROW, label, rows.map((row, i) => name(row.label, i)), rows.map(one));
};

/** The frame of a plot with two axes, each {domain, marks, label}: {x, y, nodes}. */
const frame = (across, up, width, height) => {
  const [left, right, bottom] = [52, 14, height - 40];
  const [x, y] = [scale(across.domain, left, width - right), scale(up.domain, bottom, 12)];
  return { x, y, nodes: [
    up.marks.map((mark) => [
      svg("line", { class: "gridline", x1: left, x2: width - right, y1: y(mark), y2: y(mark) }),
      svg("text", { x: left - 8, y: y(mark) + 4, "text-anchor": "end" }, exact(mark)),
    ]),
    across.marks.map((mark) => svg("text", { x: x(mark), y: bottom + 18, "text-anchor": "middle" }, exact(mark))),
    svg("text", { x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle" }, across.label),
  ] };
};

const tall = (width) => Math.min(Math.max(width * 0.62, 260), 380);

/** Places for labels beside points {x, y, text, box: [left, top, right, bottom]}, none over another or a box. */
const placed = (points, width, height) => {
  const boxes = points.map(({ box }) => [...box]);
  const clear = ([l, t, r, b]) => l > 54 && r < width && t > 0 && b < height - 40 && boxes.every((o) => r < o[0] || l > o[2] || b < o[1] || t > o[3]);
  return points.map(({ y, text, box: own }) => {
    const wide = 1.15 * wideAs(text), rows = [0, ...Array.from({ length: 16 }, (_, i) => [-15 * (i + 1), 15 * (i + 1)]).flat()];
    const places = rows.flatMap((dy) => [{ x: own[2] + 4, y: y + dy, anchor: "start" }, { x: own[0] - 4, y: y + dy, anchor: "end" }]);
    const box = (p) => (p.anchor === "start" ? [p.x, p.y - 7, p.x + wide, p.y + 6] : [p.x - wide, p.y - 7, p.x, p.y + 6]);
    const place = places.find((p) => clear(box(p))) ?? places[0];
    boxes.push(box(place));
    return place;
  });
};

/** Gain against cost with whiskers both ways; `points` = [{label, style, x, y}], intervals; `front` = labels. */
const scatter = (points, front, width, labels, shows) => {
  const height = tall(width), across = extent(points.map(({ x }) => x.high ?? x.value)), up = [-0.04, 1.04];
  const { x, y, nodes } = frame(
    { domain: across, marks: ticks(across, width < 420 ? 3 : 5), label: labels[0] },
    { domain: up, marks: ticks(up, 5) }, width, height);
  const at = points.map((point) => {
    const [cx, cy] = [x(point.x.value), y(point.y.value)], reach = (to, { low, high }) => (low === null ? [] : [to(low), to(high)]);
    const [across, up] = [[cx - 6, cx + 6, ...reach(x, point.x)], [cy - 6, cy + 6, ...reach(y, point.y)]];
    return { x: cx, y: cy, text: cut(point.label, 20), box: [Math.min(...across), Math.min(...up), Math.max(...across), Math.max(...up)] };
  });
  const places = placed(at, width, height);
  const line = front.map((label) => at[points.findIndex((point) => point.label === label)]).map((p) => `${p.x},${p.y}`);
  const one = (point, i) => svg("g", { class: point.style },
    svg("title", {}, `${point.label}: ${labels[1]} ${about(point.y, shows[1])}; ${labels[0]} ${about(point.x, shows[0])}`),
    point.x.low !== null && svg("line", { class: "whisker", x1: x(point.x.low), x2: x(point.x.high), y1: at[i].y, y2: at[i].y }),
    point.y.low !== null && svg("line", { class: "whisker", x1: at[i].x, x2: at[i].x, y1: y(point.y.low), y2: y(point.y.high) }),
    svg("circle", { class: "mean", cx: at[i].x, cy: at[i].y, r: 5 }),
    Math.abs(places[i].y - at[i].y) > 15 && svg("line", { class: "leader", x1: at[i].x, y1: at[i].y, x2: places[i].x, y2: places[i].y }),
    svg("text", { class: "end", x: places[i].x, y: places[i].y + 4, "text-anchor": places[i].anchor }, at[i].text));
  return picture(width, height, `${labels[1]} against ${labels[0]}`, nodes,
    line.length > 1 && svg("polyline", { class: "front", points: line.join(" ") }), points.map(one));
};

const CROWD = 4;

/** Curves with bands, which more than a few show one at a time; `series` = [{label, style, least, points: [{round, episodes, mean, low, high}]}], `tip` tells of a point. */
const curves = (series, width, labels, tip) => {
  const all = series.flatMap((one) => one.points), height = tall(width), last = Math.max(...all.map((point) => point.round), 2);
  const every = Math.ceil((last - 1) / (width < 420 ? 6 : 12)), up = extent(all.map((point) => point.high));
  const rounds = Array.from({ length: Math.floor((last - 1) / every) + 1 }, (_, i) => 1 + i * every);
  const { x, y, nodes } = frame({ domain: [1, last], marks: rounds, label: labels[0] }, { domain: up, marks: ticks(up, 5) }, width, height);
  const path = (points, pick) => points.map((point) => `${x(point.round)},${y(point[pick])}`).join(" ");
  const one = ({ label, style, least, points }) => {
    const many = points.filter((point) => point.episodes > least), few = points.slice(Math.max(many.length - 1, 0));
    return svg("g", { class: `series ${series.length > CROWD ? "crowded " : ""}${style}` },
      svg("polygon", { class: "band", points: `${path(many, "high")} ${path([...many].reverse(), "low")}` }),
      svg("polyline", { class: "curve", points: path(many, "mean") }),
      svg("polyline", { class: "curve few", points: path(few, "mean") }),
      points.map((point) => svg("circle", { class: point.episodes > least ? "mean" : "mean few", cx: x(point.round), cy: y(point.mean), r: 2.5 })),
      points.map((point) => svg("circle", { class: "hover", cx: x(point.round), cy: y(point.mean), r: 9 },
        svg("title", {}, `${label}, ${labels[0]} ${point.round}: ${tip(point)}, ${plural(point.episodes, "episode")}`))));
  };
  return picture(width, height, `${labels[1]} by ${labels[0]}`, nodes, series.map(one));
};
