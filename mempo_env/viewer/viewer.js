// The list of episodes, the rounds of the chosen one, and the keys and the address that move between them.

const ROW = 62; // height of a row of the list in pixels, as in viewer.css
const data = await load().catch((error) => {
  byId("episode").replaceChildren(h("p", { class: "empty", role: "alert" }, `The page's data can't be read: ${error}`));
  throw error;
});
const { entries, words } = data;

// --- The list ------------------------------------------------------------------------------------------------

const summary = ({ label, episode }, index) => {
  const finished = isFinished(episode);
  const asked = episode.questions.map((i) => data.questions[i]);
  const predictions = finished ? episode.score.objectives.map((score) => score.prediction) : [];
  const failures = finished ? [...new Set(episode.failure.filter((failure) => failure))] : [];
  return {
    index, label, failures,
    question: asked.map((question) => question.text).join(" · "),
    result: verdict(episode),
    stop: finished ? episode.stop_reason : "unfinished",
    em: finished ? episode.score.em : null,
    f1: finished ? episode.score.f1 : null,
    rounds: episode.rounds.length,
    peak: episode.tokens.peak,
    searched: folded([label, episode.question_id, ...predictions,
      ...asked.flatMap((question) => [question.text, ...question.answers])].join("\n")),
  };
};

const SORTS = {
  run: ["order of the run", (row) => row.index],
  question: ["question", (row) => row.question],
  agent: ["agent", (row) => row.label],
  em: ["EM", (row) => row.em],
  f1: ["F1", (row) => row.f1],
  rounds: ["rounds", (row) => row.rounds],
  peak: ["peak tokens", (row) => row.peak],
  failure: ["failure", (row) => row.failures.join() || null],
};
const FILTERS = {
  agent: ["Agent", (row) => [row.label]],
  result: ["Result", (row) => [row.result]],
  failure: ["Failure", (row) => (row.failures.length ? row.failures : ["none"])],
  stop: ["Stop reason", (row) => [row.stop]],
};

const all = entries.map(summary);
const collator = new Intl.Collator("en", { numeric: true });
const compare = (a, b) => (typeof a === "string" && typeof b === "string" ? collator.compare(a, b) : a - b);
let shown = all, at = null, round = 1; // rows in the list; the chosen entry, unpacked, and its round
let descending = false;

const filterBox = (name, [title, values]) => {
  const counts = new Map();
  for (const value of all.flatMap(values)) counts.set(value, (counts.get(value) ?? 0) + 1);
  const options = [...counts].sort((a, b) => compare(a[0], b[0])).map(([value, count]) =>
    h("option", { value: `=${value}` }, `${name === "agent" ? value : spaced(value)} (${whole(count)})`));
  return h("select", { id: `by-${name}`, "aria-label": title, hidden: counts.size < 2, onchange: refresh },
    h("option", { value: "" }, `${title}: all`), options);
};

const buildFilters = () => byId("filters").append(
  h("input", { id: "search", type: "search", "aria-label": "Search", placeholder: "Search questions and answers",
    oninput: refresh }),
  h("div", { class: "boxes" },
    Object.entries(FILTERS).map(([name, filter]) => filterBox(name, filter)),
    h("span", { class: "sort" },
      h("select", { id: "sort", "aria-label": "Sort by", onchange: refresh },
        Object.entries(SORTS).map(([name, [title]]) => h("option", { value: name }, `Sort: ${title}`))),
      h("button", { id: "direction", type: "button", "aria-label": "Descending", "aria-pressed": "false",
        onclick: () => { descending = !descending; refresh(); } }, "↑"))));

/** Filter and sort the list, and draw it anew. */
function refresh() {
  const wanted = Object.entries(FILTERS).map(([name, [, values]]) => [byId(`by-${name}`).value, values]);
  const terms = folded(byId("search").value).split(/\s+/).filter(Boolean);
  const key = SORTS[byId("sort").value][1], sign = descending ? -1 : 1;
  shown = all.filter((row) =>
    terms.every((term) => row.searched.includes(term)) &&
    wanted.every(([value, values]) => !value || values(row).includes(value.slice(1))));
  shown.sort((a, b) => {
    const [left, right] = [key(a), key(b)];
    if (left === null || right === null) return (left === null) - (right === null) || a.index - b.index;
    return sign * compare(left, right) || a.index - b.index;
  });
  byId("direction").replaceChildren(descending ? "↓" : "↑");
  byId("direction").setAttribute("aria-pressed", descending);
  const scored = shown.filter((row) => row.em !== null);
  const mean = (name) => decimal(scored.reduce((total, row) => total + row[name], 0) / scored.length);
  byId("count").replaceChildren(`${whole(shown.length)} of ${plural(all.length, "episode")}`,
    scored.length ? ` · EM ${mean("em")} · F1 ${mean("f1")}` : "");
  byId("list").scrollTop = 0;
  drawList();
}

const rowElement = (row, position) => {
  const chosen = row.index === at?.index;
  const element = h("div", { class: "row", role: "option", id: `row-${position}`, "aria-selected": String(chosen),
    "aria-setsize": shown.length, "aria-posinset": position + 1,
    onclick: () => { choose(row.index); unfold(false); } },
    h("span", { class: `glyph ${TONES[row.result]}`, role: "img", "aria-label": row.result }, GLYPHS[row.result]),
    h("span", { class: "asked", dir: "auto" }, row.question),
    h("span", { class: "about" }, h("bdi", {}, row.label),
      row.f1 !== null && ` · F1 ${decimal(row.f1)}`,
      ` · ${plural(row.rounds, "round")} · peak ${whole(row.peak)}`,
      row.failures.length > 0 && ` · ${row.failures.map(spaced).join(", ")}`));
  element.style.top = `${position * ROW}px`;
  return element;
};

/** Draw the rows of the list that are in sight, and a few around them. */
function drawList() {
  const list = byId("list"), first = Math.max(0, Math.floor(list.scrollTop / ROW) - 4);
  const visibleRows = shown.slice(first, first + Math.ceil(list.clientHeight / ROW) + 8);
  byId("rows").style.height = `${shown.length * ROW}px`;
  byId("rows").replaceChildren(...visibleRows.map((row, i) => rowElement(row, first + i)));
  const position = shown.findIndex((row) => row.index === at?.index);
  if (byId(`row-${position}`)) list.setAttribute("aria-activedescendant", `row-${position}`);
  else list.removeAttribute("aria-activedescendant");
}

/** On a narrow screen the list can be folded away. */
const unfold = (open) => {
  byId("toggle").setAttribute("aria-expanded", String(open));
  drawList();
};

const reveal = () => {
  const list = byId("list"), top = shown.findIndex((row) => row.index === at.index) * ROW;
  if (top < 0) return;
  if (top < list.scrollTop) list.scrollTop = top;
  else if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
};

// --- The chosen episode --------------------------------------------------------------------------------------

const strip = (entry) => {
  const gold = goldIds(entry.episode);
  return h("div", { id: "strip", role: "toolbar", "aria-label": "Rounds" }, entry.episode.rounds.map((item) => {
    const found = item.hits.some((hit) => gold.has(hit.id));
    return h("button", { type: "button", class: `step ${item.action.type}`, onclick: () => goTo(item.number),
      "aria-label": `Round ${item.number}: ${item.action.type}${found ? ", gold evidence retrieved" : ""}` },
      `${item.number} ${REASONS[item.action.type]}${found ? " ★" : ""}`);
  }));
};

const drawChart = () => {
  const box = byId("chart");
  if (!box?.clientWidth) return;
  const columns = at.episode.rounds.map(({ number, tokens }) => ({
    label: `Round ${number}: prompt ${whole(tokens.prompt)}, memory ${plural(tokens.memory, "token")}`,
    values: [tokens.prompt, tokens.memory],
  }));
  const label = `Tokens by round. ${columns.map((column) => column.label).join(". ")}`;
  box.replaceChildren(chart(columns, box.clientWidth, label, (i) => goTo(i + 1)));
  box.querySelectorAll(".column")[round - 1]?.classList.add("chosen");
};

const coming = (episode) => episode.final_view.length > 0 &&
  h("details", { class: "box", open: !isFinished(episode) },
    h("summary", {}, h("h3", {}, `What the agent ${isFinished(episode) ? "would have seen" : "sees"} next`)),
    segments(episode.final_view, episode.rounds.length + 1));

const drawRounds = (entry) => {
  if (!entry.episode.rounds.length) return [h("p", { class: "empty" }, "No round has been played.")];
  return [
    h("section", { class: "box", "aria-label": "Rounds" },
      h("h3", {}, "Rounds ", h("small", {}, "S search · A answer · ! invalid · ★ gold evidence retrieved")),
      strip(entry),
      h("div", { id: "chart" }),
      h("p", { class: "legend" },
        h("span", { class: "key key-0" }), "prompt tokens ", h("span", { class: "key key-1" }), "memory tokens")),
    h("nav", { id: "stepper", "aria-label": "Step through the rounds" },
      h("button", { id: "back", type: "button", "aria-label": "Previous round", onclick: () => goTo(round - 1) },
        "←"),
      h("p", { id: "where", "aria-live": "polite" }),
      h("button", { id: "forth", type: "button", "aria-label": "Next round", onclick: () => goTo(round + 1) },
        "→")),
    h("article", { id: "round", class: "box", "aria-label": "Round" }),
  ];
};

/** Show a round of the chosen episode, the nearest that there is. */
function goTo(number) {
  const count = at.episode.rounds.length;
  round = Math.min(Math.max(1, number), Math.max(1, count));
  remember();
  if (!count) return;
  byId("round").replaceChildren(...drawRound(at, round, words).flat().filter(Boolean));
  byId("where").replaceChildren(`Round ${round} of ${count}`);
  byId("back").setAttribute("aria-disabled", round === 1);
  byId("forth").setAttribute("aria-disabled", round === count);
  [...byId("strip").children].forEach((step, i) => {
    step.tabIndex = i === round - 1 ? 0 : -1;
    if (i === round - 1) step.setAttribute("aria-current", "step");
    else step.removeAttribute("aria-current");
    if (i === round - 1 && byId("strip").contains(document.activeElement)) step.focus();
  });
  const columns = byId("chart").querySelectorAll(".column");
  columns.forEach((column, i) => column.classList.toggle("chosen", i === round - 1));
}

/** Show an entry, by its place in the data. */
function choose(index, number = 1) {
  at = { ...unpacked(entries[index], data), index };
  const parts = [overview(at, words), drawRounds(at), coming(at.episode), settings(at.episode)];
  byId("episode").replaceChildren(...parts.flat().filter(Boolean));
  goTo(number);
  drawChart(); // last, when the page has its scroll bar
  reveal();
  drawList();
  scrollTo(0, 0);
}

// --- The address and the keys --------------------------------------------------------------------------------

/** Where an entry comes among those of its agent and question; only repeated episodes have more than one. */
const twins = Map.groupBy(all, (row) => address(row.index));
function address(index) {
  return [entries[index].label, entries[index].episode.question_id].map(encodeURIComponent).join("/");
}

function remember() {
  const twin = twins.get(address(at.index)).findIndex((row) => row.index === at.index);
  history.replaceState(null, "", `#${address(at.index)}/${round}${twin ? `/${twin + 1}` : ""}`);
}

/** Follow the address: #agent/question/round, and the repetition if there are several. */
const follow = () => {
  const [label, question, number = "1", twin = "1"] = location.hash.slice(1).split("/").map(canonical);
  const row = twins.get(`${label}/${question}`)?.[Number(twin) - 1];
  if (!row) return false;
  choose(row.index, Number(number) || 1);
  unfold(false);
  return true;
};

/** A part of an address, escaped as this page does it, whatever a link has been through. */
const canonical = (part) => {
  try {
    return encodeURIComponent(decodeURIComponent(part));
  } catch {
    return part;
  }
};

const move = (step) => {
  const position = shown.findIndex((row) => row.index === at?.index) + step;
  if (shown[position]) choose(shown[position].index);
};

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select") || !at) return;
  const inList = event.target.id === "list";
  const deeds = {
    j: () => move(1), k: () => move(-1),
    ArrowLeft: () => goTo(round - 1), ArrowRight: () => goTo(round + 1),
    ...(inList && { ArrowDown: () => move(1), ArrowUp: () => move(-1) }),
  };
  if (!deeds[event.key]) return;
  event.preventDefault();
  deeds[event.key]();
});
addEventListener("hashchange", follow);
byId("list").addEventListener("scroll", drawList);
byId("toggle").addEventListener("click", () => unfold(byId("toggle").getAttribute("aria-expanded") !== "true"));
addEventListener("resize", () => { drawList(); drawChart(); });

document.body.classList.toggle("single", entries.length < 2);
byId("filters").addEventListener("submit", (event) => event.preventDefault());
buildFilters();
refresh();
if (!follow() && all.length) choose(shown[0].index);
if (!all.length) byId("episode").replaceChildren(h("p", { class: "empty" }, "There are no episodes to show."));
document.body.dataset.ready = "";
