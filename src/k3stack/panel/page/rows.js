// The rows of choices: radio groups whose impossible values stay visible and say why.
"use strict";
K3.rows = (() => {
  const { el, t, has, data, fill, $, origin } = K3;
  const made = new Map();
  let take = () => {};

  const words = (dimension, option) =>
    (option.label && K3.said(option.label)) || (has(`${dimension}.${option.value}`) ? t(`${dimension}.${option.value}`) : option.value);

  /** A value of any row in words, for the sentences about what moved. */
  function named(dimension, value) {
    if (has(`${dimension}.${value}`)) return t(`${dimension}.${value}`);
    if (dimension === "layout") return value.split(";").map(layoutName).join(" + ");
    if (dimension === "hardware") return value.toUpperCase();
    return value;
  }

  function layoutName(word) {
    const sizes = word.split(",");
    const shown = sizes.filter((part) => part === "ep" || !part.endsWith("1") || /[a-z]+\d+1$/.test(part) || part.startsWith("tp"));
    return shown.join("·").toUpperCase();
  }

  function noteOf(dimension, option) {
    if (option.refused) {
      const { why, fix } = option.refused;
      return [el("strong", {}, t("not.possible")), data(why), K3.gap(), data(fix), " ", origin(option.refused)];
    }
    if (option.moves.length) return [t("would.move"), ...option.moves.flatMap((move, at) => [at ? "; " : "", moved(move)])];
    if (dimension === "layout" && option.note) {
      return [t("published.for", { goals: option.note.split(",").map((goal) => t(`goal.${goal}`)).join(t("comma")) })];
    }
    if (dimension === "scheme") return [data(option.note)];
    if (has(`${dimension}.${option.value}.about`)) return [t(`${dimension}.${option.value}.about`)];
    return [];
  }

  /** "Layout TP8 → TP16 (why)". */
  function moved(move) {
    const before = named(move.dimension, move.before);
    const after = named(move.dimension, move.after);
    return el(
      "span",
      { class: "moved" },
      t("move", { row: t(`row.${move.dimension}`), before, after }),
      move.why ? [" (", data(move.why), ")"] : move.dimension === "layout" ? ` (${t("as.published")})` : "",
    );
  }

  function build(row) {
    const title = el("h3", { id: `row-${row.dimension}`, class: "row-title" });
    const chips = el("div", { class: "chips", role: "radiogroup", "aria-labelledby": `row-${row.dimension}` });
    const note = el("p", { class: "row-note", id: `note-${row.dimension}` });
    const pop = el("div", { class: "pop", id: `pop-${row.dimension}`, "aria-hidden": "true" });
    const box = el("div", { class: "row", "data-row": row.dimension }, title, chips, note, pop);
    chips.addEventListener("keydown", (event) => arrows(event, chips));
    $("rows").append(box);
    const entry = { box, title, chips, note, pop, options: new Map(), row };
    made.set(row.dimension, entry);
    return entry;
  }

  /** Arrow keys go along a row without choosing; space and enter choose. One tab stop for each row. */
  function arrows(event, chips) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const all = [...chips.children];
    const here = all.indexOf(document.activeElement);
    if (here < 0) return;
    let next = null;
    if (step) next = all[(here + step + all.length) % all.length];
    if (event.key === "Home") next = all[0];
    if (event.key === "End") next = all[all.length - 1];
    if (!next) return;
    event.preventDefault();
    next.focus();
  }

  function chip(entry, option) {
    const dimension = entry.row.dimension;
    const button = el("button", { type: "button", role: "radio", class: "chip", id: `o-${dimension}-${option.value}` });
    button.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && float(entry, button.dataset.value));
    button.addEventListener("pointerleave", () => fill(entry.pop));
    button.addEventListener("focus", () => show(entry, button.dataset.value));
    button.addEventListener("blur", () => show(entry));
    button.addEventListener("click", () => {
      const now = entry.row.options.find((one) => one.value === button.dataset.value);
      if (now.refused) pin(entry, now.value);
      else if (!now.chosen) take(dimension, now);
    });
    return button;
  }

  /** A tapped reason stays until something else is chosen. */
  function pin(entry, value) {
    entry.pinned = value;
    fill(entry.pop);
    show(entry, value);
  }

  /** Under the pointer a note floats: rows that moved away from under it would be chased. */
  function float(entry, value) {
    const option = entry.row.options.find((one) => one.value === value);
    if (value === entry.pinned || option.chosen) return;
    fill(entry.pop, noteOf(entry.row.dimension, option));
    entry.pop.classList.toggle("refused", Boolean(option.refused));
  }

  function show(entry, value) {
    const focused = document.activeElement && entry.chips.contains(document.activeElement) ? document.activeElement.dataset.value : null;
    const wanted = value || entry.pinned || focused;
    const option = entry.row.options.find((one) => one.value === wanted) || entry.row.options.find((one) => one.chosen);
    fill(entry.note, option ? noteOf(entry.row.dimension, option) : []);
    entry.note.classList.toggle("refused", Boolean(option && option.refused));
  }

  function update(entry, row) {
    entry.row = row;
    entry.pinned = null;
    fill(entry.pop);
    entry.title.textContent = t(`row.${row.dimension}`);
    const buttons = row.options.map((option) => {
      if (!entry.options.has(option.value)) entry.options.set(option.value, chip(entry, option));
      const button = entry.options.get(option.value);
      button.dataset.value = option.value;
      button.setAttribute("aria-checked", option.chosen);
      button.setAttribute("aria-disabled", Boolean(option.refused));
      button.setAttribute("aria-describedby", `note-${row.dimension}`);
      button.tabIndex = option.chosen ? 0 : -1;
      button.classList.toggle("moves", option.moves.length > 0);
      button.classList.toggle("named", row.dimension === "layout" && Boolean(option.note));
      fill(button, el("span", { class: "chip-word", translate: option.label ? "no" : null, text: words(row.dimension, option) }), small(row.dimension, option));
      return button;
    });
    if (buttons.length !== entry.chips.children.length || buttons.some((button, at) => entry.chips.children[at] !== button)) {
      const focused = document.activeElement;
      entry.chips.replaceChildren(...buttons);
      if (focused && entry.chips.contains(focused)) focused.focus();
    }
    if (!row.options.some((option) => option.chosen)) buttons[0].tabIndex = 0;
    show(entry);
  }

  const small = (dimension, option) =>
    dimension === "hardware" ? el("span", { class: "chip-note", translate: "no", text: option.note }) : null;

  function draw(rows) {
    for (const row of rows) update(made.get(row.dimension) || build(row), row);
  }

  return { draw, moved, named, words, onTake: (run) => (take = run) };
})();
