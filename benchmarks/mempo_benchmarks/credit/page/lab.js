// The credit lab: its reading, plots and tables. `stages`, `columns` and `reading` are made by `report.py`.

const fixed = (digits) => (value) => (Number(value.toFixed(digits)) === 0 ? (0).toFixed(digits) : value.toFixed(digits).replace("-", "−"));
const signed = (show) => (value) => (value > 0 && Number(show(value)) !== 0 ? `+${show(value)}` : show(value));
const [two, three] = [fixed(2), fixed(3)];
const shower = (key) => (key === "gold" ? signed(three) : key === "gain" ? signed(two) : two);
const clear = ({ low, high }) => low !== null && low * high > 0;
const style = ({ name, about }) => (about.startsWith("control") ? "reference" : name.startsWith("mempo") ? "memory" : "other");

/** An element whose content `draw(width)` makes, now and whenever its width changes. */
const plot = (draw) => {
  const box = h("div", { class: "plot" });
  let drawn = 0;
  new ResizeObserver(([{ contentRect }]) => {
    const width = Math.floor(contentRect.width);
    if (width && width !== drawn) box.replaceChildren(draw((drawn = width)));
  }).observe(box);
  return box;
};

const section = (title, text, ...children) => h("section", { class: "box" }, h("h2", {}, title), text && h("p", {}, text), ...children);
const scrolls = (label, ...children) => h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, h("table", {}, ...children));

/** Content that depends on choices: `controls` = [[label, options]], `draw(...choices)` gives the content. */
const choosing = (controls, draw) => {
  const box = h("div");
  const selects = controls.map(([label, options, first = 0]) =>
    h("select", { "aria-label": label, onchange: () => show() }, options.map((name, i) => h("option", { value: name, selected: i === first }, name))));
  const show = () => box.replaceChildren(...draw(...selects.map((select) => select.value)));
  show();
  return [h("div", { class: "controls" }, selects.map((select, i) => h("label", {}, controls[i][0], select))), box];
};

// --- Parts ---------------------------------------------------------------------------------------------------------

const words = ({ reading }) => section("Reading", "Written from the numbers below.",
  reading.map(([title, sentences]) => [h("h3", {}, title), h("ul", { class: "reading" }, sentences.map((text) => h("li", {}, text)))]));

const unknown = (stage, least) => `The truth's reliability is ${two(stage.reliability[0])}, below ${least}: no correlation is shown.`;

const panels = ({ stages, least }) => {
  const ends = stages.flatMap(({ rows }) => rows.flatMap(({ rank }) => (rank ? [rank.low ?? rank.value, rank.high ?? rank.value] : [])));
  const bounds = extent([...ends, 0.1]);
  return h("div", { class: "panels" }, stages.map((stage) => h("div", {}, h("h3", {}, `${stage.name}, em ${two(stage.em)}`),
    stage.reliability[0] < least ? h("p", {}, unknown(stage, least))
      : plot((width) => intervals(stage.rows.map((row) => ({ label: row.name, style: style(row), interval: row.rank })), width, two,
        { bounds, label: `Rank correlation with the truth, ${stage.name}` })))));
};

const cell = (key, interval) => {
  if (!interval) return h("td", {}, "–");
  const show = shower(key);
  return h("td", {}, show(interval.value), h("small", {}, interval.low === null ? "no interval" : `${show(interval.low)} to ${show(interval.high)}`));
};

const table = (stage, columns) => scrolls(`Estimators, ${stage.name}`,
  h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "estimator"), columns.map(({ label, about }) => h("th", { scope: "col", title: about }, label)),
    h("th", { scope: "col", title: "Rank correlation divided by the root of the truth's reliability: corrected for the truth's own error, if that is all there is." }, "corrected for attenuation"))),
  h("tbody", {}, stage.rows.map((row) => h("tr", {},
    h("th", { scope: "row", title: row.about }, h("span", { class: `dot ${style(row)}` }), row.name),
    columns.map(({ key }) => cell(key, row[key])), h("td", {}, row.corrected === null ? "–" : two(row.corrected))))));

const bias = (stage) => {
  const most = Math.max(...stage.rows.flatMap((row) => row.bias.map((one) => Math.abs(one?.value ?? 0))), 1e-9);
  const show = signed(three);
  const heat = (interval) => interval === null ? h("td", {}, "–") : h("td", {
    class: `heat ${interval.value > 0 ? "plus" : "minus"} ${clear(interval) ? "clear" : ""}`,
    title: interval.low === null ? null : `95 % interval ${show(interval.low)} to ${show(interval.high)}`,
  }, h("span", {}, show(interval.value), clear(interval) ? "*" : ""));
  const box = scrolls(`Bias by round, ${stage.name}`,
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "estimator"), stage.rounds.map((round) => h("th", { scope: "col" }, `round ${round}`)))),
    h("tbody", {}, stage.rows.map((row) => h("tr", {}, h("th", { scope: "row", title: row.about }, row.name), row.bias.map(heat)))));
  const cells = [...box.querySelectorAll("td.heat")];
  stage.rows.flatMap((row) => row.bias).filter((one) => one).forEach((one, i) => cells[i].style.setProperty("--size", `${0.45 * Math.abs(one.value) / most}`));
  return box;
};

/** A dot for each operation: what an estimator says of it against what it is truly worth. */
const dots = (stage, row, width) => {
  const height = tall(width), across = extent(row.values), up = extent(stage.truth);
  const { x, y, nodes } = frame({ domain: across, marks: ticks(across, width < 420 ? 3 : 6), label: `what ${row.name} says (upwards: the true advantage)` }, { domain: up, marks: ticks(up, 5) }, width, height);
  return picture(width, height, `True advantage against what ${row.name} says, ${stage.name}`, nodes,
    svg("line", { class: "zero", x1: x(0), x2: x(0), y1: y(up[0]), y2: y(up[1]) }), svg("line", { class: "zero", x1: x(across[0]), x2: x(across[1]), y1: y(0), y2: y(0) }),
    svg("g", { class: style(row) }, row.values.map((value, i) =>
      svg("circle", { class: "operation", cx: x(value), cy: y(stage.truth[i]), r: 3.5 },
        svg("title", {}, `question ${stage.question[i] + 1}, round ${stage.round[i]}: says ${two(value)}, truly ${signed(three)(stage.truth[i])} ± ${three(stage.error[i])}`)))));
};

const gold = (stage) => [
  stage.gold === null ? h("p", { class: "empty" }, "No gold fact was in view that could be kept and dropped.")
    : plot((width) => intervals([{ label: "the truth", style: "truth", interval: stage.gold }, ...stage.rows.map((row) => ({ label: row.name, style: style(row), interval: row.gold }))],
      width, signed(three), { tick: signed(decimal), label: `Keeping a gold fact against dropping it, ${stage.name}` })),
  h("p", {}, `${stage.gold_facts} gold facts in view of these operations; the policy kept ${percent(stage.gold_kept)}. Where it kept all or none there is no difference to show.`)];

const spent = ({ stages, plan, method }) => section("How it was measured", method,
  scrolls("What was spent", h("thead", {}, h("tr", {}, ["stage", "operations", "pairs of forks", "least–most each", "saved by shared numbers", "sd of the truth", "standard error", "reliability", "within questions", "seconds"].map((label) => h("th", { scope: "col" }, label)))),
    h("tbody", {}, stages.map((stage) => h("tr", {}, h("th", { scope: "row" }, stage.name),
      [whole(stage.operations), whole(stage.pairs), stage.fork_range.map(whole).join("–"), `${fixed(1)(stage.saved)} ×`, three(stage.signal), three(stage.se), two(stage.reliability[0]), two(stage.reliability[1]), whole(stage.seconds)].map((text) => h("td", {}, text)))))),
  h("dl", { class: "facts" }, stages.map((stage) => [h("dt", {}, stage.name), h("dd", {}, stage.trained)]), h("dt", {}, "plan"), h("dd", {}, `${plan.questions} questions, ${plan.rollouts} rollouts each, ${plan.forks} pairs of forks an operation on average, seed ${plan.seed}`)));

const show = (data) => {
  const { stages, columns } = data, names = stages.map((stage) => stage.name), late = Math.floor(names.length / 2);
  const of = (name) => stages.find((stage) => stage.name === name), rows = stages[0].rows.map((row) => row.name);
  byId("report").replaceChildren(h("div", {},
    h("header", {}, h("h1", {}, document.title), h("p", { class: "lead" }, `What ${rows.length} estimators say of memory operations, against what these are truly worth — ${stages.length} ${stages.length === 1 ? "policy" : "policies"}`)),
    words(data),
    section("Rank correlation with the truth", "Over all operations, with 95 % intervals. Blue: with a memory term. Hollow: controls. Grey: all others.", panels(data)),
    section("Estimators", "Values with 95 % intervals; a heading says what it means when pointed at.", ...choosing([["stage", names, late]], (name) => [of(name).reliability[0] < data.least && h("p", {}, unknown(of(name), data.least)), table(of(name), columns)].filter((x) => x))),
    section("Every operation", "A dot is one memory operation: to the right the estimator praises it, above the line it was truly better than what the policy does on average.",
      ...choosing([["stage", names, late], ["estimator", rows, rows.indexOf("mempo")]], (name, label) => [plot((width) => dots(of(name), of(name).rows.find((row) => row.name === label), width))])),
    section("Bias by round", "Mean of the scaled value minus the truth, on the scale of R. Bold with a star: the interval leaves 0 out.", ...choosing([["stage", names, late]], (name) => [bias(of(name))])),
    section("Keeping a gold fact", "The planned contrast: R after keeping one gold fact minus R after dropping it, all else alike. Below, the advantage of tokens that kept one minus that of tokens that dropped one, scaled; these are other states, so they differ in more than the fact.", ...choosing([["stage", names, late]], (name) => gold(of(name)))),
    spent(data)));
};

load().then(show, (error) => byId("report").replaceChildren(h("p", { class: "empty" }, `The results can't be shown: ${error.message}`)));
