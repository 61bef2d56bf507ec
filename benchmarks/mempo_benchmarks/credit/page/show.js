// One rollout: a row for each estimator, a cell for each decision. Data: the fields of `strips.Strips`, and `reference`.

const two = signed(fixed(2));
const greatest = (values) => Math.max(...values.map(Math.abs), 0);

/** Decisions grouped by round: [[round, [index, ...]], ...]. */
const byRound = (decisions) => {
  const rounds = [];
  decisions.forEach(({ round }, k) => (rounds.at(-1)?.[0] === round ? rounds.at(-1)[1].push(k) : rounds.push([round, [k]])));
  return rounds;
};

const opens = (decisions, k) => k > 0 && decisions[k].round !== decisions[k - 1].round;

const against = (data, reference) => {
  const base = data.rows[reference].map(Math.sign);
  return Object.fromEntries(Object.entries(data.rows).map(([name, values]) => [name, values.map((value, k) => Math.sign(value) * base[k] < 0)]));
};

const cell = (data, name, values, most, k, marked) => {
  const value = values[k], size = most ? Math.abs(value) / most : 0;
  const shown = value > 0 ? "+" : value < 0 ? "−" : "·";
  const inner = h("span", {}, shown);
  inner.style.setProperty("--size", `${Math.round(15 + 85 * size) * (value !== 0)}%`);
  return h("td", {
    class: `${value > 0 ? "plus" : value < 0 ? "minus" : "none"} ${marked ? "against" : ""} ${opens(data.decisions, k) ? "opens" : ""}`, "data-k": k,
    title: `${name}: ${two(value)}, ${data.decisions[k].text}`,
  }, inner);
};

const strips = (data, reference, choose) => {
  const marks = against(data, reference), { decisions, rows } = data;
  const head = decisions.map((decision, k) => h("th", { scope: "col", class: opens(decisions, k) ? "opens" : null },
    h("button", { type: "button", class: decision.role, "data-k": k, tabindex: k === 0 ? 0 : -1, "aria-pressed": "false",
      title: `${decision.role}: ${decision.text}`, "aria-label": `round ${decision.round}, ${decision.role}: ${decision.text}`,
      onclick: () => choose(k), onfocus: () => choose(k) }, decision.role[0])));
  const box = h("div", { class: "strips", role: "region", "aria-label": "Strips" },
    h("table", {},
      h("thead", {},
        h("tr", {}, h("th", {}), byRound(decisions).map(([round, ks]) => h("th", { class: "round", colspan: ks.length, scope: "colgroup" }, ks.length > 5 ? `round ${round}` : round))),
        h("tr", {}, h("th", { scope: "col" }), head)),
      h("tbody", {}, Object.entries(rows).map(([name, values]) => h("tr", { class: name === reference ? "reference" : null },
        h("th", { scope: "row", title: data.about[name] ?? null }, name),
        values.map((_, k) => cell(data, name, values, greatest(values), k, marks[name][k])))))));
  box.style.setProperty("--count", decisions.length);
  return box;
};

/** What all estimators say of one decision. */
const detail = (data, reference, k) => {
  const { text, role, round } = data.decisions[k], base = Math.sign(data.rows[reference][k]);
  const entries = Object.entries(data.rows);
  const praise = (sign) => entries.filter(([, values]) => Math.sign(values[k]) === sign).map(([name, values]) => `${name} ${two(values[k])}`).join(", ") || "nobody";
  return [h("h3", {}, h("span", { class: `role ${role}` }, role), `round ${round}: ${text}`),
    h("p", {}, h("span", { class: "good" }, "for it: "), praise(1)), h("p", {}, h("span", { class: "bad" }, "against it: "), praise(-1)),
    base === 0 && h("p", { class: "muted" }, `${reference} takes no side.`)];
};

const counts = (data, reference) => {
  if (!data.rows[reference].some((value) => value !== 0)) {
    return h("p", { class: "empty" }, `${reference} takes no side in this rollout: it gives 0 to every decision, as where all rollouts of a group are paid alike. Choose another reference above.`);
  }
  const marks = against(data, reference);
  const row = ([name, flags]) => {
    const found = flags.flatMap((flag, k) => (flag ? [k] : []));
    const most = found.toSorted((a, b) => Math.abs(data.rows[name][b]) - Math.abs(data.rows[name][a]))[0];
    return h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, `${found.length} of ${flags.length}`),
      h("td", {}, most === undefined ? "" : `most in round ${data.decisions[most].round}: ${data.decisions[most].text} (${two(data.rows[name][most])}, ${reference} ${two(data.rows[reference][most])})`));
  };
  return scrolls("Signs against the reference", { class: "counts" }, h("tbody", {}, Object.entries(marks).filter(([name]) => name !== reference).map(row)));
};

const words = (data) => h("ol", { class: "rounds" }, byRound(data.decisions).map(([round, ks]) =>
  h("li", {}, h("h3", {}, `round ${round}`), h("ul", {}, ks.map((k) => h("li", {}, h("span", { class: `role ${data.decisions[k].role}` }, data.decisions[k].role), data.decisions[k].text))))));

const legend = () => h("ul", { class: "legend" },
  ["mem", "think", "call", "answer"].map((role) => h("li", {}, h("span", { class: `role ${role}` }, role))),
  h("li", {}, h("span", { class: "mark against" }), "sign against the reference"), h("li", {}, "strong colour: great for its row; · is 0"));

const show = (data) => {
  let chosen = 0, reference = data.reference;
  const table = h("div"), about = h("div", { class: "detail", "aria-live": "polite" }), tally = h("div");
  const choose = (k) => {
    chosen = k;
    for (const button of table.querySelectorAll("thead button")) {
      const mine = Number(button.dataset.k) === k;
      button.setAttribute("aria-pressed", mine);
      button.tabIndex = mine ? 0 : -1;
    }
    about.replaceChildren(...detail(data, reference, k).filter((node) => node));
  };
  const draw = () => {
    table.replaceChildren(strips(data, reference, choose));
    tally.replaceChildren(counts(data, reference));
    choose(chosen);
  };
  table.addEventListener("keydown", (event) => {
    const last = data.decisions.length - 1;
    const to = { ArrowLeft: chosen - 1, ArrowRight: chosen + 1, Home: 0, End: last }[event.key];
    if (to === undefined || to < 0 || to > last) return;
    event.preventDefault();
    table.querySelector(`thead button[data-k="${to}"]`).focus();
  });
  table.addEventListener("mouseover", ({ target }) => {
    const k = target.closest("[data-k]")?.dataset.k;
    if (k !== undefined && Number(k) !== chosen) choose(Number(k));
  });
  const select = picks("reference", Object.keys(data.rows), reference, () => { reference = select.value; draw(); });
  byId("report").replaceChildren(h("div", {},
    h("header", {}, h("h1", {}, document.title), h("p", { class: "lead" }, Object.entries(data.facts).map(([name, value]) => `${name}: ${value}`).join(" · ")),
      h("ol", {}, data.questions.map((text) => h("li", {}, text)))),
    section("What each estimator says", "A column is a decision; point at it, or walk with the arrow keys. Colours are scaled by the greatest advantage of each row.",
      h("div", { class: "controls" }, h("label", {}, "reference", select)), table, legend(), about),
    section("Signs against the reference", "Decisions that an estimator praises and the reference blames, or the other way round; an advantage of 0 takes no side.", tally),
    section("The decisions", null, words(data))));
  draw();
};

present(show, "The rollout");
