// What the pages of the benchmarks are built of: signed numbers, sections, tables, plots that follow the width, choices.

// A number with so many digits; halves go away from zero, as `mempo_benchmarks.figures` has it, and no zero has a minus.
const fixed = (digits) => {
  const style = new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits, useGrouping: false });
  return (value) => { const text = style.format(value); return /[1-9]/.test(text) ? text.replace("-", "−") : text.replace("-", ""); };
};
const signed = (show) => (value) => (value > 0 && /[1-9]/.test(show(value)) ? `+${show(value)}` : show(value));

const section = (title, text, ...children) => h("section", { class: "box" }, h("h2", {}, title), text && h("p", {}, text), ...children);

/** A table that scrolls sideways where it is wider than the page. */
const scrolls = (label, props, ...children) => h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, h("table", props, ...children));
const heads = (labels) => h("thead", {}, h("tr", {}, labels.map((label) => h("th", { scope: "col" }, label))));

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

const picks = (label, options, chosen, onchange) =>
  h("select", { "aria-label": label, onchange }, options.map((name) => h("option", { value: name, selected: name === chosen }, name)));

/** Content that depends on choices: `controls` = [[label, options, chosen]], `draw(...choices)` gives the content. */
const choosing = (controls, draw) => {
  const box = h("div"), selects = controls.map((control) => picks(...control, () => show()));
  const show = () => box.replaceChildren(...draw(...selects.map((select) => select.value)));
  show();
  return [h("div", { class: "controls" }, selects.map((select, i) => h("label", {}, controls[i][0], select))), box];
};

/** Draw the page from its data, or say why not. */
const present = (show, what) =>
  load().then(show, (error) => byId("report").replaceChildren(h("p", { class: "empty" }, `${what} can't be shown: ${error.message}`)));
