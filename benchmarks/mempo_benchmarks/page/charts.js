// Plots as SVG at a given width in pixels. An arm is {label, style, ...}; `style` is the class that sets its colour.

const AXIS = 12, ROW = 28;
const wideAs = (text) => 6.9 * text.length;
const cut = (text, most) => (text.length <= most ? text : `${text.slice(0, most - 1)}…`);

/** About `count` round numbers from `low` to `high`, both within them. */
const ticks = (low, high, count) => {
  const rough = (high - low || Math.abs(high) || 1) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((s) => s * power).find((s) => s >= rough * 0.999);
  const first = Math.floor(low / step + 1e-9), last = Math.ceil(high / step - 1e-9);
  return Array.from({ length: Math.max(last - first, 1) + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
};

const scale = (marks, from, to) => {
  const [low, high] = [marks[0], marks.at(-1)];
  return (value) => from + ((to - from) * (value - low)) / (high - low);
};

const picture = (width, height, label, ...children) =>
  svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...children);

/** Labels on the left of horizontal rows: [the width that they take, a function (text, row) => node]. */
const rowLabels = (texts, width) => {
  const left = Math.min(Math.max(...texts.map(wideAs)) + 14, width * 0.42), most = Math.floor((left - 12) / 6.9);
  return [left, (text, i) => svg("text", { x: 0, y: i * ROW + ROW / 2 + 4, class: "name" }, svg("title", {}, text), cut(text, most))];
};

const about = (interval, show) =>
  interval.low === null ? show(interval.value) : `${show(interval.value)}, 95 % interval ${show(interval.low)} to ${show(interval.high)}`;

/** Means with their intervals, a row each. `rows` = [{label, style, interval}], `show` formats a number. */
const intervals = (rows, width, show, { bounds = null, zero = false, label }) => {
  const known = rows.filter((row) => row.interval);
  const values = known.flatMap(({ interval: { value, low, high } }) => [value, low ?? value, high ?? value]);
  const marks = ticks(...(bounds ?? [Math.min(0, ...values), Math.max(0, ...values)]), width < 420 ? 3 : 5);
  const [left, name] = rowLabels(rows.map((row) => row.label), width);
  const x = scale(marks, left + 8, width - 24), bottom = rows.length * ROW + 4;
  const one = (row, i) => {
    const y = i * ROW + ROW / 2;
    if (!row.interval) return svg("text", { x: left + 8, y: y + 4 }, "–");
    const { value, low, high } = row.interval;
    return svg("g", { class: row.style },
      svg("title", {}, `${row.label}: ${about(row.interval, show)}`),
      svg("rect", { class: "hover", x: 0, y: i * ROW, width, height: ROW }),
      low !== null && svg("line", { class: "whisker", x1: x(low), x2: x(high), y1: y, y2: y }),
      svg("circle", { class: "mean", cx: x(value), cy: y, r: 4.5 }));
  };
  return picture(width, bottom + AXIS + 10, label,
    marks.map((mark) => [
      svg("line", { class: zero && mark === 0 ? "zero" : "gridline", x1: x(mark), x2: x(mark), y1: 0, y2: bottom }),
      svg("text", { x: x(mark), y: bottom + AXIS + 4, "text-anchor": "middle" }, show(mark)),
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

/** The frame of a plot with two axes: {x, y, nodes}. */
const frame = (xs, ys, width, height, right, labels, shows) => {
  const [left, bottom] = [52, height - 40];
  const [x, y] = [scale(xs, left, width - right), scale(ys, bottom, 12)];
  return { x, y, nodes: [
    ys.map((mark) => [
      svg("line", { class: "gridline", x1: left, x2: width - right, y1: y(mark), y2: y(mark) }),
      svg("text", { x: left - 8, y: y(mark) + 4, "text-anchor": "end" }, shows[1](mark)),
    ]),
    xs.map((mark) => svg("text", { x: x(mark), y: bottom + 18, "text-anchor": "middle" }, shows[0](mark))),
    svg("text", { x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle" }, labels[0]),
  ] };
};

/** The wanted heights of labels, moved apart so that neighbours are at least `gap` away from each other. */
const apart = (wanted, gap) => {
  const order = wanted.map((_, i) => i).sort((a, b) => wanted[a] - wanted[b]);
  const placed = [...wanted];
  for (let pass = 0; pass < 60; pass++) {
    for (let k = 1; k < order.length; k++) {
      const [a, b] = [order[k - 1], order[k]], short = gap - (placed[b] - placed[a]);
      if (short > 0) { placed[a] -= short / 2; placed[b] += short / 2; }
    }
  }
  return placed;
};

/** Gain against cost with whiskers both ways; `points` = [{label, style, x, y}], intervals; `front` = labels. */
const scatter = (points, front, width, labels, shows) => {
  const right = Math.min(Math.max(...points.map((point) => wideAs(point.label)), 0) + 12, width * 0.3);
  const height = Math.min(Math.max(width * 0.62, 260), 380);
  const xs = ticks(0, Math.max(...points.map(({ x }) => x.high ?? x.value)), width < 420 ? 3 : 5), ys = ticks(0, 1, 5);
  const { x, y, nodes } = frame(xs, ys, width, height, right, labels, shows);
  const at = new Map(points.map((point) => [point.label, point]));
  const line = front.filter((label) => at.has(label)).map((label) => `${x(at.get(label).x.value)},${y(at.get(label).y.value)}`);
  const heights = apart(points.map((point) => y(point.y.value) + 4), 14);
  const one = (point, i) => {
    const [cx, cy] = [x(point.x.value), y(point.y.value)];
    return svg("g", { class: point.style },
      svg("title", {}, `${point.label}: ${labels[1]} ${about(point.y, shows[1])}; ${labels[0]} ${about(point.x, shows[0])}`),
      point.x.low !== null && svg("line", { class: "whisker", x1: x(point.x.low), x2: x(point.x.high), y1: cy, y2: cy }),
      point.y.low !== null && svg("line", { class: "whisker", x1: cx, x2: cx, y1: y(point.y.low), y2: y(point.y.high) }),
      svg("circle", { class: "mean", cx, cy, r: 5 }),
      svg("text", { class: "end", x: cx + 10, y: heights[i] }, cut(point.label, 18)));
  };
  return picture(width, height, `${labels[1]} against ${labels[0]}`, nodes,
    line.length > 1 && svg("polyline", { class: "front", points: line.join(" ") }), points.map(one));
};

/** Curves with bands; `series` = [{label, style, least, points: [{round, episodes, mean, low, high}]}]. */
const curves = (series, width, labels, show) => {
  const drawn = series.filter((one) => one.points.length), points = drawn.flatMap((one) => one.points);
  const right = Math.min(Math.max(...drawn.map((one) => wideAs(one.label))) + 14, width * 0.3);
  const height = Math.min(Math.max(width * 0.62, 280), 380), last = Math.max(...points.map((point) => point.round));
  const ys = ticks(0, Math.max(...points.map((point) => point.high)), 5), every = Math.ceil(last / (width < 420 ? 6 : 12));
  const xs = Array.from({ length: Math.ceil((last - 1) / every) + 1 }, (_, i) => 1 + i * every);
  const { x, y, nodes } = frame(xs.length > 1 ? xs : [1, 2], ys, width, height, right, labels, [whole, show]);
  const path = (list, pick) => list.map((point) => `${x(point.round)},${y(point[pick])}`).join(" ");
  const ends = apart(drawn.map((one) => y(one.points.at(-1).mean) + 4), 14);
  const one = ({ label, style, least, points }, i) => {
    const many = points.filter((point) => point.episodes >= least), few = points.slice(Math.max(many.length - 1, 0));
    return svg("g", { class: `series ${style}` },
      svg("polygon", { class: "band", points: `${path(many, "high")} ${path([...many].reverse(), "low")}` }),
      svg("polyline", { class: "curve", points: path(many, "mean") }),
      svg("polyline", { class: "curve few", points: path(few, "mean") }),
      points.map((point) => svg("circle", { class: point.episodes >= least ? "mean" : "mean few", cx: x(point.round), cy: y(point.mean), r: 2.5 })),
      points.map((point) => svg("circle", { class: "hover", cx: x(point.round), cy: y(point.mean), r: 9 },
        svg("title", {}, `${label}, round ${point.round}: ${show(point.mean)} tokens, 10 to 90 % ${show(point.low)} to ${show(point.high)}, ${plural(point.episodes, "episode")}`))),
      svg("text", { class: "end", x: x(points.at(-1).round) + 10, y: ends[i] }, svg("title", {}, label), cut(label, 18)));
  };
  return picture(width, height, `${labels[1]} by ${labels[0]}`, nodes, drawn.map(one));
};
