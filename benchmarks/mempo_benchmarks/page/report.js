// The report: a table that sorts, and the plots, drawn again when the width changes.

const share = fixed(3);
const tokens = (value) => (Math.abs(value) >= 100 ? whole(value) : fixed(1)(value));
const short = (value) => (Math.abs(value) < 1e4 ? tokens(value)
  : value.toLocaleString("en-US", { notation: "compact", maximumSignificantDigits: 3 }).replace("K", "k").replace("-", "−"));
const shower = (metric) => (metric.share ? share : tokens);
const bounder = (metric) => (metric.share ? fixed(2) : short);
const dollars = (digits) => (value) => value.toLocaleString("en-US",
  { style: "currency", currency: "USD", ...(value >= 1 ? {} : { minimumSignificantDigits: 1, maximumSignificantDigits: digits }) });
const range = ({ low, high }, show) => (low === null ? "no interval" : `${show(low)}–${show(high)}`);

/** Arms with the class of their colour: the references are grey and hollow, the others have one each; after eight again. */
const styled = (arms) => {
  let next = 0;
  const coloured = () => { const n = next++; return `arm-${n % 8}${n < 8 ? "" : " again"}`; };
  return arms.map((arm) => ({ ...arm, complete: arm.done === arm.planned, style: arm.role ? `reference ${arm.role}` : coloured() }));
};

/** What is drawn of the arms that count tokens in one unit, for each unit; `drawn` takes arms, and the unit's name if there are several. */
const byUnit = ({ arms, units }, drawn) => units.map((unit) => drawn(arms.filter((arm) => arm.unit === unit), units.length > 1 ? ` (${unit})` : ""));

// --- Tables --------------------------------------------------------------------------------------------------------

/** A cell with a value and its interval; `show` writes the value, `bound` the bounds. */
const cell = (interval, about, show, bound) =>
  interval ? h("td", { title: about }, show(interval.value), h("small", {}, range(interval, bound))) : h("td", {}, "–");

const head = (arm) =>
  h("th", { scope: "row", title: arm.label }, h("span", { class: `dot ${arm.style}` }), arm.label, arm.role && h("small", {}, arm.role));

/** A table of agents that sorts. `columns` = [{label, about, of: arm => value or null, cell: arm => node}]. */
const sortable = (title, arms, columns) => {
  const row = (arm) => h("tr", { class: arm.complete ? null : "incomplete" }, columns.map((column) => column.cell(arm)));
  const body = h("tbody", {}, arms.map(row));
  const compare = (a, b) => (a === null) - (b === null) || (typeof a === "string" ? a.localeCompare(b) : a - b);
  const sort = (column, head) => {
    const now = head.getAttribute("aria-sort"), down = now === "ascending" || (now === null && column.label !== "agent");
    const order = [...arms].sort((a, b) => {
      const [p, q] = [column.of(a), column.of(b)];
      return p === null || q === null ? compare(p, q) : (down ? -1 : 1) * compare(p, q);
    });
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.replaceChildren(...order.map(row));
  };
  const sorting = columns.map((column) => {
    const head = h("th", { scope: "col", title: column.about }, h("button", { type: "button", onclick: () => sort(column, head) }, column.label));
    return head;
  });
  return scrolls(title, {}, h("thead", {}, h("tr", {}, sorting)), body);
};

const agent = { label: "agent", about: "Who played.", of: (arm) => arm.label, cell: head };

const episodesOf = (arm) =>
  h("td", {}, arm.complete ? whole(arm.done) : [h("span", { class: "warn" }, "incomplete"), h("small", {}, `${whole(arm.done)} of ${whole(arm.planned)}`)],
    arm.failed > 0 && h("small", { class: "warn" }, `${whole(arm.failed)} failed`));

const results = ({ arms, metrics, units }) => sortable("Results", arms, [
  agent,
  ...(units.length > 1 ? [{ label: "tokens are", about: "What its tokens are counted in.", of: (arm) => arm.unit, cell: (arm) => h("td", {}, arm.unit || "–") }] : []),
  { label: "episodes", about: "Episodes with a result; failed ones are among them.", of: (arm) => arm.done, cell: episodesOf },
  ...metrics.map((metric) => ({
    ...metric,
    of: ({ metrics }) => metrics[metric.key]?.value ?? null,
    cell: ({ metrics }) => cell(metrics[metric.key], metric.about, shower(metric), bounder(metric)),
  })),
  {
    label: "masked", about: "Failed episodes that were no fault of the agent; trainers leave them out.",
    of: (arm) => arm.masked, cell: (arm) => h("td", {}, arm.done ? whole(arm.masked) : "–"),
  },
]);

const costs = ({ arms, costs }) => sortable("What it cost", arms, [
  agent,
  ...(arms.some(({ model }) => model) ? [{ label: "model", about: "The model behind it.", of: ({ model }) => model, cell: ({ model }) => h("td", {}, model || "–") }] : []),
  ...costs.flatMap(({ key, label, about, money }) => ["episode", "right"].map((which) => ({
    label: which === "episode" ? label + (money ? " episodes" : "") : money ? `${label} right answers` : `${label} per right answer`, about,
    of: ({ spent }) => spent[key]?.[which]?.value ?? null,
    cell: ({ spent }) => cell(spent[key]?.[which], about, money ? dollars(3) : tokens, money ? dollars(2) : short),
  }))),
]);

// --- The plots -----------------------------------------------------------------------------------------------------

const PANELS = ["em", "f1", "peak", "evidence_kept"];

const panel = (arms, metric, unit = "") => {
  const show = shower(metric), rows = arms.map(({ label, style, metrics }) => ({ label, style, interval: metrics[metric.key] }));
  return h("div", {}, h("h3", { title: metric.about }, metric.label + unit),
    plot((width) => intervals(rows, width, show, { bounds: metric.share ? [0, 1] : null, label: `${metric.label} of each agent` })));
};

const panels = (view) =>
  h("div", { class: "grid" }, PANELS.map((key) => {
    const metric = view.metrics.find((one) => one.key === key);
    return metric.tokens ? byUnit(view, (arms, unit) => panel(arms, metric, unit)) : panel(view.arms, metric);
  }));

const reasons = ({ arms, words }) => {
  const rows = arms.filter((arm) => arm.done).map(({ label, outcomes }) => ({ label, shares: Object.entries(outcomes) }));
  const used = Object.keys(words).filter((reason) => rows.some(({ shares }) => shares.some(([name]) => name === reason)));
  return [plot((width) => stacks(rows, width, "Outcomes of each agent's questions")),
    h("ul", { class: "legend" }, used.map((reason) => h("li", { title: words[reason] }, h("span", { class: `dot share ${reason}` }), spaced(reason))))];
};

const tradeoff = (view) => byUnit(view, (arms, unit) => {
  const known = arms.filter(({ metrics }) => metrics.em && metrics.peak);
  const points = known.map(({ label, style, metrics }) => ({ label, style, x: metrics.peak, y: metrics.em }));
  const front = view.front.filter((label) => points.some((point) => point.label === label));
  return points.length > 0 && plot((width) => scatter(points, front, width, [`peak tokens${unit}`, "EM"], [tokens, share]));
});

const gains = ({ arms, gains, metrics }) =>
  h("div", { class: "grid" }, ["em", "f1"].map((key) => {
    const metric = metrics.find((one) => one.key === key), style = Object.fromEntries(arms.map((arm) => [arm.label, arm.style]));
    const rows = gains.map(({ a, metrics, p }) => ({ label: a, style: style[a], interval: metrics[key], p: p[key] })).filter((row) => row.interval);
    return h("div", {}, h("h3", { title: metric.about }, metric.label),
      plot((width) => intervals(rows, width, signed(share), { tick: signed(exact), label: `Gain in ${metric.label} over no_memory` })));
  }));

/** Curves with their legend; where there are many it is said how to see a band. */
const curved = (series, labels, tip) => [plot((width) => curves(series, width, labels, tip)),
  h("ul", { class: "legend" }, series.map(({ label, style }) => h("li", {}, h("span", { class: `dot ${style}` }), label))),
  series.length > CROWD && h("p", { class: "lead" }, "With so many agents a band is drawn where one points at its curve.")];

const places = ({ arms }) => {
  const known = arms.filter(({ several }) => several);
  const series = known.map(({ label, style, several, done }) => ({ label, style, least: 0,
    points: several.positions.map(({ value, low, high }, i) => ({ round: i + 1, mean: value, low, high, episodes: done })) }));
  const sums = ["em", "f1"].map((key) => ({
    label: `${key.toUpperCase()} sum`, about: `${key.toUpperCase()} summed over the questions of an episode.`, of: ({ several }) => several[key].value,
    cell: ({ several }) => cell(several[key], "", fixed(2), fixed(2)),
  }));
  const counts = known[0].several.answered.map((_, k) => ({
    label: `${k} answered`, about: "Share of the episodes in which so many questions got an answer.", of: ({ several }) => several.answered[k],
    cell: ({ several }) => h("td", {}, percent(several.answered[k])),
  }));
  const tip = ({ mean, low, high }) => `EM ${about({ value: mean, low, high }, share)}`;
  return [curved(series, ["question", "EM"], tip),
    sortable("Sums and answers", known, [agent, ...sums, ...counts])];
};

const prompts = (view) => byUnit(view, (arms, unit) => {
  const series = arms.filter((arm) => arm.prompts.length).map(({ label, style, prompts, done }) => ({ label, style, points: prompts, least: done / 10 }));
  const tip = ({ mean, low, high }) => `${tokens(mean)} prompt tokens${unit}, 10 to 90 % ${tokens(low)} to ${tokens(high)}`;
  return series.length > 0 && curved(series, ["round", `prompt tokens${unit}`], tip);
});

const paired = ({ arms, metrics, pairs, baseline }) => {
  const box = h("div"), labels = arms.map((arm) => arm.label).filter((label) => pairs.some(({ a, b }) => a === label || b === label));
  const select = (name, options, chosen) =>
    h("select", { "aria-label": name, onchange: () => draw() }, options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));
  const against = select("baseline", labels.map((label) => [label, label]), baseline);
  const figure = select("figure", metrics.map(({ key, label }) => [key, label]), "em");
  const difference = (label) => {
    const pair = pairs.find(({ a, b }) => (a === label && b === against.value) || (b === label && a === against.value));
    const interval = pair?.metrics[figure.value], minus = (bound) => (bound === null ? null : -bound);
    if (!interval) return {};
    const { value, low, high } = interval, p = pair.p[figure.value];
    return { p, interval: pair.a === label ? interval : { value: -value, low: minus(high), high: minus(low) } };
  };
  const draw = () => {
    const metric = metrics.find(({ key }) => key === figure.value), show = signed(metric.share ? share : tokens);
    const rows = arms.map(({ label, style }) => ({ label, style, ...difference(label) })).filter((row) => row.interval);
    const left = pairs.filter(({ a, b, left_out }) => left_out > 0 && (a === against.value || b === against.value))
      .map(({ a, b, episodes, left_out }) => `${a === against.value ? b : a}: ${whole(left_out)} of ${whole(episodes + left_out)}`);
    const words = left.length > 0 && h("p", { class: "lead" }, `Left out, as an episode failed by no fault of the agent: ${left.join("; ")}.`);
    box.replaceChildren(...[words].filter(Boolean), rows.length === 0 ? h("p", { class: "empty" }, "Nothing to compare.") : plot((width) => intervals(rows, width, show, { tick: signed(exact), label: `Differences in ${metric.label} to ${against.value}` })));
  };
  draw();
  return [h("div", { class: "controls" }, h("label", {}, "of", figure), h("label", {}, "to", against)), box];
};

// --- Words ---------------------------------------------------------------------------------------------------------

const facts = ({ runs }) => runs.map((run) =>
  h("details", {}, h("summary", {}, `How ${run.name} was made`),
    h("dl", { class: "facts" }, Object.entries(run.facts).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]))));

const notes = ({ differing, notes }) => {
  const lines = [...differing.map((text) => `The runs differ: ${text}`), ...notes.map((text) => `${text}.`)];
  return lines.length > 0 && h("section", { class: "box note" }, h("ul", {}, lines.map((line) => h("li", {}, line))));
};

const episodes = ({ runs }) => section("Every episode", "Round by round: what the agent saw, wrote, kept and lost.",
  h("ul", { class: "legend" }, runs.map(({ name, viewer, command }) =>
    h("li", {}, viewer && [h("a", { href: viewer }, `the episodes of ${name}`), " · "], h("code", {}, command)))));

const show = (data) => {
  const view = { ...data, arms: styled(data.arms) };
  byId("report").replaceChildren(h("div", {},
    h("header", {}, h("h1", {}, document.title), data.lead.map((line) => h("p", { class: "lead" }, line))),
    notes(view),
    section("In short", "Floors and ceiling stand aside.", h("ul", { class: "short" }, data.conclusions.map((line) => h("li", {}, line)))),
    section("Results", `Means over all episodes, failed ones included, with 95 % intervals.${data.units.length === 1 ? ` Tokens are ${data.units[0]}.` : ""} Click a heading to sort.`, results(view), h("p", { class: "lead" }, `${data.kept}.`)),
    section("At a glance", "Means and 95 % intervals.", panels(view)),
    view.gains.length > 0 && section("What the memory is worth", "The memory-isolated gain: paired differences to the agent without a memory, with the same model on the same questions, so that a strong reader does not pass for a good memory. Beyond chance where p, of the exact sign-flip test, is below 0.05. Episodes that failed by no fault of the agent are left out.", h("p", { class: "lead" }, `${data.decides}.`), gains(view)),
    view.arms.some(({ several }) => several) && section("Several questions in an episode", "EM of the question in each place, a band for its 95 % interval; sums over the questions of an episode, and how many of them got an answer.", places(view)),
    view.costs.length > 0 && section("What it cost", "Means over all episodes, and sums over all episodes for each question that was answered rightly.", costs(view)),
    section("Why questions failed", "Each question of each episode has one outcome: right, or the first reason that holds.", reasons(view)),
    h("div", { class: "pair" },
      section("Prompt tokens by round", "All calls of a round together: the mean over the episodes that came to it, a band for their 10th to 90th percentile; faint where a tenth of them or fewer are left.", prompts(view)),
      section("Accuracy against peak tokens", "Dotted: the front of agents that no other beats in both. The ceiling knows the gold and stands aside.", tradeoff(view))),
    view.pairs.length > 0 && section("Paired differences", "Of the same questions, with 95 % intervals. A difference is beyond chance where p, of the exact sign-flip test, is below 0.05.", h("p", { class: "lead" }, `${data.decides}.`), paired(view)),
    episodes(view),
    h("section", { class: "box" }, h("h2", {}, "Reproduce"), h("p", {}, data.method), facts(view))));
};

present(show, "The results");
