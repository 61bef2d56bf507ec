// The credit lab: its reading, plots and tables. `stages`, `columns` and `reading` are made by `report.py`.

const [two, three] = [fixed(2), fixed(3)];
const shower = (key) => (key === "gold" ? signed(three) : key === "gain" ? signed(two) : two);
const clear = ({ low, high }) => low !== null && low * high > 0;
const style = ({ name, about }) => (about.startsWith("control") ? "reference" : name.startsWith("mempo") ? "memory" : "other");

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

const cell = (key, row) => {
  const interval = row[key], show = shower(key);
  if (!interval) return h("td", {}, "–");
  const spread = key === "rank" && row.spread !== null ? `The mean of shuffles whose standard deviation is ${two(row.spread)}.` : null;
  return h("td", { title: spread }, show(interval.value), h("small", {}, interval.low === null ? "no interval" : `${show(interval.low)} to ${show(interval.high)}`));
};

const table = (stage, columns) => scrolls(`Estimators, ${stage.name}`, {},
  h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "estimator"), columns.map(({ label, about }) => h("th", { scope: "col", title: about }, label)),
    h("th", { scope: "col", title: "Rank correlation divided by the root of the truth's reliability: corrected for the truth's own error, if that is all there is." }, "corrected for attenuation"))),
  h("tbody", {}, stage.rows.map((row) => h("tr", {},
    h("th", { scope: "row", title: row.about }, h("span", { class: `dot ${style(row)}` }), row.name),
    columns.map(({ key }) => cell(key, row)), h("td", {}, row.corrected === null ? "–" : two(row.corrected))))));

const bias = (stage) => {
  const most = Math.max(...stage.rows.flatMap((row) => row.bias.map((one) => Math.abs(one?.value ?? 0))), 1e-9);
  const show = signed(three);
  const heat = (interval) => interval === null ? h("td", {}, "–") : h("td", {
    class: `heat ${interval.value > 0 ? "plus" : "minus"} ${clear(interval) ? "clear" : ""}`,
    title: interval.low === null ? null : `95 % interval ${show(interval.low)} to ${show(interval.high)}`,
  }, h("span", {}, show(interval.value), clear(interval) ? "*" : ""));
  const box = scrolls(`Bias by round, ${stage.name}`, {},
    heads(["estimator", ...stage.rounds.map((round) => `round ${round}`)]),
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
      width, signed(three), { tick: signed(exact), label: `Keeping a gold fact against dropping it, ${stage.name}` })),
  h("p", {}, `${stage.gold_facts} gold facts in view of these operations; the policy kept ${percent(stage.gold_kept)}. Where it kept all or none there is no difference to show.`)];

const spent = ({ stages, plan, method }) => section("How it was measured", method,
  scrolls("What was spent", {},
    heads(["stage", "operations", "pairs of forks", "least–most each", "saved by shared numbers", "sd of the truth", "standard error", "reliability", "within questions", "seconds"]),
    h("tbody", {}, stages.map((stage) => h("tr", {}, h("th", { scope: "row" }, stage.name),
      [whole(stage.operations), whole(stage.pairs), stage.fork_range.map(whole).join("–"), `${fixed(1)(stage.saved)} ×`, three(stage.signal), three(stage.se), two(stage.reliability[0]), two(stage.reliability[1]), whole(stage.seconds)].map((text) => h("td", {}, text)))))),
  h("dl", { class: "facts" }, stages.map((stage) => [h("dt", {}, stage.name), h("dd", {}, stage.trained)]), h("dt", {}, "plan"), h("dd", {}, `${plan.questions} questions, ${plan.rollouts} rollouts each, ${plan.forks} pairs of forks an operation on average, seed ${plan.seed}`)));

const show = (data) => {
  const { stages, columns } = data, names = stages.map((stage) => stage.name), middle = names[Math.floor(names.length / 2)];
  const of = (name) => stages.find((stage) => stage.name === name), rows = stages[0].rows.map((row) => row.name);
  byId("report").replaceChildren(h("div", {},
    h("header", {}, h("h1", {}, document.title), h("p", { class: "lead" }, `What ${rows.length} estimators say of memory operations, against what these are truly worth — ${stages.length} ${stages.length === 1 ? "policy" : "policies"}`)),
    words(data),
    section("Rank correlation with the truth", "Over all operations, with 95 % intervals. Blue: with a memory term. Hollow: controls. Grey: all others.", panels(data)),
    section("Estimators", "Values with 95 % intervals; a heading says what it means when pointed at.", ...choosing([["stage", names, middle]], (name) => [of(name).reliability[0] < data.least && h("p", {}, unknown(of(name), data.least)), table(of(name), columns)].filter((x) => x))),
    section("Every operation", "A dot is one memory operation: to the right the estimator praises it, above the line it was truly better than what the policy does on average.",
      ...choosing([["stage", names, middle], ["estimator", rows, "mempo"]], (name, label) => [plot((width) => dots(of(name), of(name).rows.find((row) => row.name === label), width))])),
    section("Bias by round", "Mean of the scaled value minus the truth, on the scale of R. Bold with a star: the interval leaves 0 out.", ...choosing([["stage", names, middle]], (name) => [bias(of(name))])),
    section("Keeping a gold fact", "The planned contrast: R after keeping one gold fact minus R after dropping it, all else alike. Below, the advantage of tokens that kept one minus that of tokens that dropped one, scaled; these are other states, so they differ in more than the fact.", ...choosing([["stage", names, middle]], (name) => gold(of(name)))),
    spent(data)));
};

present(show, "The results");
