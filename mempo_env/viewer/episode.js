// Draws one episode and one round of it. Needs parts.js.

const REASONS = { search: "S", answer: "A", invalid: "!" };
const TONES = { right: "good", partly: "warn", wrong: "bad", unfinished: "" };
const GLYPHS = { right: "✓", partly: "◐", wrong: "✗", unfinished: "…" };

const isInvalid = (round) => round.action.type === "invalid";
const isFinished = (episode) => episode.stop_reason !== null;
const goldIds = (episode) => new Set(episode.questions.flatMap((q) => q.evidence.map((e) => e.passage_id)));
const chip = (text, tone = "") => h("span", { class: `chip ${tone}` }, text);
const text = (tag, ...children) => h(tag, { class: "text", dir: "auto" }, ...children);

const quoted = (words) => ["“", h("bdi", {}, words), "”"];

/** "right", "partly", "wrong" or "unfinished". */
const verdict = ({ score, stop_reason }) =>
  stop_reason === null ? "unfinished" : score.em_all === 1 ? "right" : score.em > 0 ? "partly" : "wrong";

/** The entry with indices replaced by what they stand for in the tables of the page's data. */
const unpacked = (entry, data) => {
  const prose = (lines) => lines.map((i) => data.lines[i]).join("\n");
  const segment = (i) => {
    const [kind, round, tokens, lines] = data.segments[i];
    return { kind, round, tokens, text: prose(lines) };
  };
  const hit = ([i, score]) => {
    const [id, title, row, lines] = data.passages[i];
    return { id, title, row, score, text: prose(lines) };
  };
  const { episode } = entry;
  const ledger = episode.ledger.map(segment);
  const view = (indices) => indices.map((i) => ledger[i]);
  const call = (call) => ({ ...call, segments: call.segments.map(segment), output: prose(call.output) });
  const rounds = episode.rounds.map((round) => ({
    ...round, text: prose(round.text), memory: prose(round.memory), view: view(round.view),
    hits: round.hits.map(hit), calls: round.calls.map(call),
  }));
  const questions = episode.questions.map((i) => data.questions[i]);
  return { ...entry, episode: { ...episode, questions, rounds, final_view: view(episode.final_view) } };
};

// --- The episode ---------------------------------------------------------------------------------------------

const muted = (...words) => h("span", { class: "muted" }, ...words);
const answers = (list) => list.map((answer, i) => [i > 0 && muted(" or "), text("bdi", answer)]);

const objective = (episode, i, words) => {
  const finished = isFinished(episode);
  const question = episode.questions[i], score = episode.score.objectives[i], failure = episode.failure[i];
  const many = episode.questions.length > 1;
  const row = (name, ...value) => [h("dt", {}, name), h("dd", {}, ...value)];
  return h("li", { class: "objective" },
    many && text("p", question.text),
    h("dl", { class: "pairs" },
      row("Gold", answers(question.answers)),
      finished && score && row("Answer",
        score.prediction ? text("bdi", score.prediction) : muted("none"), " ",
        chip(score.em ? "✓ right" : "✗ wrong", score.em ? "good" : "bad"), " ",
        many && h("small", { class: "number" }, `F1 ${decimal(score.f1)} · EM relaxed ${decimal(score.em_relaxed)}`)),
      finished && failure && row("Failure",
        h("b", {}, spaced(failure)), muted(` – ${words.failure[failure]}`))));
};

const fact = (name, value, note) =>
  h("div", {}, h("dt", {}, name), h("dd", { class: "number" }, value), note && h("small", {}, note));

const terms = (weighted, raw = weighted) =>
  Object.keys(weighted).filter((name) => raw[name]).map((name) =>
    `${spaced(name)} ${decimal(weighted[name])}${raw[name] === weighted[name] ? "" : ` (raw ${decimal(raw[name])})`}`);

const sum = (rewards) => Object.values(rewards).reduce((total, value) => total + value, 0);

const facts = (episode) => {
  const { score, tokens } = episode, finished = isFinished(episode), many = episode.questions.length > 1;
  return h("dl", { class: "facts" },
    finished && fact("EM", decimal(score.em), many && `all right: ${decimal(score.em_all)}`),
    finished && fact("F1", decimal(score.f1)),
    finished && fact("EM relaxed", decimal(score.em_relaxed)),
    fact("Rounds", whole(episode.rounds.length)),
    fact("Peak tokens", whole(tokens.peak), "longest call"),
    fact("Total tokens", compact(tokens.total), "all calls"),
    fact("Dependency", compact(tokens.dependency), "token pairs"),
    fact("Reward", decimal(sum(episode.rewards)), terms(episode.rewards).join(", ")));
};

const evidence = (episode) => {
  const gold = episode.questions.flatMap((question) => question.evidence);
  const found = (id) => episode.rounds.find((round) => round.hits.some((hit) => hit.id === id))?.number;
  const item = ({ passage_id, title, sentences }) => {
    const round = found(passage_id);
    return h("li", {},
      h("p", {}, h("b", { dir: "auto" }, title), " ",
        chip(round ? `✓ retrieved in round ${round}` : "✗ never retrieved", round ? "good" : "bad")),
      sentences.map((sentence) => text("p", sentence.trim())));
  };
  const shown = gold.filter((item) => found(item.passage_id)).length;
  return gold.length > 0 && h("details", { class: "gold" },
    h("summary", {}, h("h3", {}, "Gold evidence"), " ",
      chip(`${whole(shown)} of ${plural(gold.length, "passage")} retrieved`, shown === gold.length ? "good" : "bad")),
    h("ul", { class: "evidence" }, gold.map(item)));
};

const settings = (episode) => {
  const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  const rows = Object.entries(episode.settings).map(([name, value]) => [h("dt", {}, name), h("dd", {}, shown(value))]);
  return rows.length > 0 && h("details", { class: "box" },
    h("summary", {}, h("h3", {}, "Settings")), h("dl", { class: "pairs mono" }, rows));
};

/** All of an episode but its rounds. */
const overview = ({ label, episode }, words) => {
  const asked = episode.questions, result = verdict(episode), finished = isFinished(episode);
  const right = episode.score.objectives.filter((score) => score.em).length;
  const told = result === "partly" ? `partly right: ${right} of ${asked.length}` : result;
  return [
    h("header", { class: "title" },
      h("p", {}, chip(label, "accent"), " ", chip(`${GLYPHS[result]} ${told}`, TONES[result]), " ",
        h("small", { class: "mono" }, episode.question_id)),
      h("h2", { dir: "auto" }, asked.length === 1 ? asked[0].text : plural(asked.length, "question"))),
    h("section", { class: "box", "aria-label": "Result" },
      h("ol", { class: asked.length > 1 ? "objectives" : "objectives one", tabindex: asked.length > 4 && "0" },
        asked.map((_, i) => objective(episode, i, words))),
      finished && h("p", { class: "stop" },
        muted("Ended: "), h("b", {}, spaced(episode.stop_reason)), muted(` – ${words.stop[episode.stop_reason]}`),
        episode.stop_detail && h("span", { class: "mono", dir: "auto" }, ` ${episode.stop_detail}`)),
      finished && episode.stop_reason === "answered" && !episode.score.well_formed &&
        h("p", { class: "warn" }, "The answer is not well-formed: it does not hold one part for each question."),
      episode.mask_episode && h("p", { class: "warn" }, "Masked: trainers leave this episode out."),
      facts(episode),
      evidence(episode)),
  ];
};

// --- A round -------------------------------------------------------------------------------------------------

const openKinds = {}; // kinds of segments that the reader has opened or closed, kept from round to round

const segment = ({ kind, round, text: body, tokens }, open) =>
  h("details", { class: `segment ${kind}`, open: openKinds[kind] ?? open },
    h("summary", { onclick: (event) => (openKinds[kind] = !event.currentTarget.parentNode.open) },
      h("b", { class: "role" }, kind), " ",
      h("small", {}, `${round ? `round ${round}` : "from the start"} · ${plural(tokens, "token")}`), " ",
      h("span", { class: "peek", dir: "auto", "aria-hidden": "true" }, body.slice(0, 160))),
    text("div", body));

const segments = (list, number) =>
  list.map((item) => segment(item, item.kind !== "system" && (item.round === 0 || item.round >= number - 1)));

const wrote = (round) => {
  const points = Array.from(round.text); // spans count code points, not UTF-16 units
  const block = ({ role, start, end }) => {
    const part = points.slice(start, end).join("").trim();
    return part && h("div", { class: `span ${role}` }, h("b", { class: "role" }, role), text("div", part));
  };
  if (!round.text.trim()) return muted("nothing");
  return round.action.spans.length ? round.action.spans.map(block) : text("div", round.text);
};

const calls = (round) => round.calls.length > 0 && h("details", { class: "box" },
  h("summary", {}, h("h4", {}, `Calls of the model: ${whole(round.calls.length)}`)),
  round.calls.map((call, i) => h("section", { class: "call" },
    h("h5", {}, `Call ${i + 1} `,
      h("small", {}, `prompt ${whole(call.prompt_tokens)} · output ${whole(call.output_tokens)} tokens`)),
    segments(call.segments, round.number),
    h("div", { class: "span answer" }, h("b", { class: "role" }, "output"), text("div", call.output)))));

const memory = (before, after) => {
  const runs = difference(before, after), count = (kind) =>
    runs.filter((run) => run[0] === kind).reduce((total, run) => total + run[1].match(/\S+/g).length, 0);
  const [added, removed] = [count("ins"), count("del")];
  if (!runs.length) return muted("empty");
  const told = !before.trim() ? "written for the first time"
    : !(added + removed) ? "unchanged"
    : `${plural(added, "word")} added, ${whole(removed)} removed since the round before`;
  const change = ([kind, part]) => [h(kind, {}, part.trimEnd()), part.slice(part.trimEnd().length)];
  const shown = before.trim() ? runs.map((run) => (run[0] === "same" ? run[1] : change(run))) : after;
  return [h("p", {}, h("small", {}, told)), h("div", { class: "text memory", dir: "auto" }, shown)];
};

const passage = (hit, episode) => {
  const gold = episode.questions.flatMap((q) => q.evidence).filter((e) => e.passage_id === hit.id);
  return h("li", { class: gold.length ? "hit gold" : "hit" },
    h("p", {}, h("b", { dir: "auto" }, hit.title), " ", gold.length > 0 && chip("★ gold evidence", "warn"), " ",
      h("small", { class: "number" }, `score ${decimal(hit.score)}`)),
    text("p", marked(hit.text, gold.flatMap((e) => e.sentences))));
};

/** Which objectives hold a property, in words; null where none can tell. */
const which = (flags, yes, no) => {
  if (flags.every((flag) => flag === null)) return null;
  if (flags.length === 1) return `${flags[0] ? yes : no}.`;
  const held = flags.flatMap((flag, i) => (flag ? [i + 1] : []));
  if (held.length === flags.length) return `${yes}: all ${flags.length} questions.`;
  if (!held.length) return `${no}.`;
  return `${yes}: question${held.length > 1 ? "s" : ""} ${held.join(", ")} of ${flags.length}.`;
};

const diagnosis = ({ diagnostics: now, action }, before) => {
  const share = (what, name) => {
    const [then, value] = [before?.diagnostics[name] ?? now[name], now[name]];
    return value !== null && `${what}: ${percent(value)}${then === value ? "" : `, ${percent(then)} before`}.`;
  };
  return h("ul", { class: "diagnosis" }, [
    share("Gold passages shown so far", "evidence_recall"),
    share("Gold facts that the coming prompt holds", "evidence_kept"),
    now.evidence_recall === null && "No gold evidence is known to compare with.",
    now.facts_lost > 0 && `Lost: ${plural(now.facts_lost, "gold fact")} that an earlier prompt held.`,
    which(now.answer_in_retrieved,
      "A passage shown so far contains a gold answer", "No passage shown so far contains a gold answer"),
    which(now.answer_in_memory, "The memory contains a gold answer", "The memory contains no gold answer"),
    now.redundant_query && action.type === "search" && "This query was asked before.",
  ].filter(Boolean).map((line) => h("li", {}, line)));
};

const deed = ({ action }) => ({
  search: () => ["searched for ", quoted(action.query)],
  answer: () => ["answered ", quoted(action.text)],
  invalid: () => ["invalid action: ", quoted(action.reason)],
})[action.type]();

/** One round: what was seen, written, retrieved and remembered, and what it means. */
const drawRound = ({ episode }, number, words) => {
  const round = episode.rounds[number - 1], before = episode.rounds[number - 2], { tokens, action } = round;
  const earned = terms(round.reward.weighted, round.reward.raw);
  const part = (title, note, ...content) =>
    h("section", { class: "part" }, h("h4", {}, title, " ", h("small", {}, note)), ...content);
  return [
    h("h3", {}, `Round ${number}: `, deed(round)),
    isInvalid(round) && text("p", h("span", { class: "bad" }, action.detail)),
    h("p", { class: "chips" },
      action.flaws.map((flaw) => [chip(Object.hasOwn(words.flaw, flaw) ? words.flaw[flaw] : spaced(flaw), "warn"),
        " "]),
      round.finish_reason === "length" && [chip("output cut by its length limit", "warn"), " "],
      h("small", { class: "number" },
        `prompt ${whole(tokens.prompt)} · output ${whole(tokens.output)} · memory ${plural(tokens.memory, "token")}`,
        ` · reward ${decimal(sum(round.reward.weighted))}${earned.length ? ` (${earned.join(", ")})` : ""}`)),
    diagnosis(round, before),
    part("What the agent saw", plural(round.view.length, "segment"), segments(round.view, number)),
    calls(round),
    part("What it wrote", plural(tokens.output, "token"), wrote(round)),
    action.type === "search" && part("What was retrieved", plural(round.hits.length, "passage"),
      round.hits.length === 0 && muted("nothing"),
      h("ol", { class: "hits" }, round.hits.map((hit) => passage(hit, episode)))),
    part("The memory after it", plural(tokens.memory, "token"), memory(before?.memory ?? "", round.memory)),
    h("p", {}, h("small", {}, "state ", h("code", {}, round.state_hash))),
  ];
};
