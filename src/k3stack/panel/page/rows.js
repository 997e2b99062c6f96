// The rows of choices: radio groups whose impossible values stay visible and say why.
"use strict";
K3.rows = (() => {
  const { el, t, has, data, fill, $, origin, pointed } = K3;
  const made = new Map();
  let take = () => {};
  let look = async () => null;
  let resting = 0;
  const AFTER_PRESS_MS = 300;

  const words = (dimension, option) =>
    (dimension === "layout" && K3.layouts.name(option.value)) ||
    (option.label && K3.said(option.label)) || (has(`${dimension}.${option.value}`) ? t(`${dimension}.${option.value}`) : option.value);

  /** A value of any row in words, for the sentences about what moved. */
  function named(dimension, value) {
    if (has(`${dimension}.${value}`)) return t(`${dimension}.${value}`);
    if (dimension === "layout") return K3.layouts.name(value);
    if (dimension === "hardware") return value.toUpperCase();
    return value;
  }

  function noteOf(dimension, option) {
    if (option.refused) {
      const { why, fix } = option.refused;
      return [el("strong", {}, t("not.possible")), data(why), K3.gap(), data(fix), " ", origin(option.refused)];
    }
    return [...aboutOf(dimension, option).flatMap((part, at) => [at ? K3.gap() : "", part]), movesOf(option)];
  }

  /** What a value is, where its name does not say it. */
  function aboutOf(dimension, option) {
    if (dimension === "layout") {
      const goals = option.note ? option.note.split(",").map((goal) => t(`goal.${goal}`)).join(t("list")) : "";
      return [...K3.layouts.explained(option.value), ...(goals ? [t("published.for", { goals })] : [])];
    }
    const key = `${dimension}.${option.value}.about`;
    const said = has(key) ? [t(key)] : [];
    return dimension === "scheme" ? [data(option.note, "code"), ...said] : said;
  }

  const movesOf = (option) =>
    option.moves.length ? el("span", { class: "moves-too" }, t("would.move"), option.moves.map(moved)) : null;

  /** "Layout TP8 → TP16 (why)". */
  function moved(move) {
    const before = named(move.dimension, move.before);
    const after = named(move.dimension, move.after);
    return el(
      "span",
      { class: "moved" },
      t("move", { row: t(`row.${move.dimension}`), before, after }),
      move.why ? [" (", data(move.why), ")"] : move.dimension === "layout" ? ` (${move.said || t("as.published")})` : "",
    );
  }

  function build(row) {
    const title = el("h3", { id: `row-${row.dimension}`, class: "row-title" });
    const about = el("p", { class: "row-about", id: `about-${row.dimension}` });
    const chips = el("div", { class: "chips", role: "radiogroup", "aria-labelledby": `row-${row.dimension}` });
    const note = el("p", { class: "row-note", id: `note-${row.dimension}` });
    const pop = el("div", { class: "pop", id: `pop-${row.dimension}`, "aria-hidden": "true" });
    const box = el("div", { class: "row", "data-row": row.dimension }, title, about, chips, note, pop);
    chips.addEventListener("keydown", (event) => arrows(event, chips));
    $("rows").append(box);
    const entry = { box, title, about, chips, note, pop, options: new Map(), row };
    made.set(row.dimension, entry);
    return entry;
  }

  /** Arrow keys go along a row without choosing; space and enter choose. One tab stop for each row. */
  function arrows(event, chips) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const all = [...chips.querySelectorAll(".chip")];
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
    pointed(button, () => float(entry, button.dataset.value));
    button.addEventListener("pointerleave", () => (leave(), fill(entry.pop)));
    // A press of the mouse moves the focus too: a note that grew or went then would move the value away from under it.
    button.addEventListener("focus", () => button.matches(":focus-visible") && show(entry, button.dataset.value));
    button.addEventListener("blur", () => setTimeout(() => show(entry), AFTER_PRESS_MS));
    button.addEventListener("click", () => {
      const now = optionOf(entry, button.dataset.value);
      if (now.refused) pin(entry, now.value);
      else take(dimension, now.value);
    });
    return button;
  }

  const optionOf = (entry, value) => entry.row.options.find((one) => one.value === value);

  /** A tapped reason stays until something else is chosen. */
  function pin(entry, value) {
    entry.pinned = value;
    fill(entry.pop);
    show(entry, value);
    entry.note.scrollIntoView({ block: "nearest" });
  }

  /** Under the pointer a note floats: rows that moved away from under it would be chased. */
  function float(entry, value) {
    const option = optionOf(entry, value);
    if (value === entry.pinned || option.chosen) return;
    fill(entry.pop, noteOf(entry.row.dimension, option));
    entry.pop.classList.toggle("refused", Boolean(option.refused));
    foretell(entry.pop, option);
  }

  const leave = () => resting++;

  /** Whether a value would fit, before it is taken: asked for when the pointer or the focus rests on it. */
  function foretell(place, option) {
    if (!option.to || option.chosen) return;
    leave();
    const mine = resting;
    const rest = async () => {
      const said = mine === resting && (await look(option.to));
      if (said && mine === resting) place.append(said);
    };
    setTimeout(rest, 150);
  }

  /** Put away what floats or was tapped; whether there was anything. */
  function dismiss() {
    let any = false;
    for (const entry of made.values()) {
      any = any || Boolean(entry.pop.firstChild || (entry.shown && !entry.shown.chosen));
      fill(entry.pop);
      entry.pinned = null;
      if (entry.shown && !entry.shown.chosen) show(entry, null, true);
    }
    return any;
  }

  function show(entry, value, quiet = false) {
    const at = document.activeElement;
    const focused = !quiet && at && entry.chips.contains(at) && at.matches(":focus-visible") ? at.dataset.value : null;
    const option = optionOf(entry, value || entry.pinned || focused) || entry.row.options.find((one) => one.chosen);
    if (entry.shown === option && !quiet) return;
    entry.shown = option;
    leave();
    fill(entry.note, option ? noteOf(entry.row.dimension, option) : []);
    entry.note.classList.toggle("refused", Boolean(option && option.refused));
    if (option && focused === option.value) foretell(entry.note, option);
  }

  function dress(entry, option) {
    const { dimension } = entry.row;
    if (!entry.options.has(option.value)) entry.options.set(option.value, chip(entry, option));
    const button = entry.options.get(option.value);
    button.dataset.value = option.value;
    button.setAttribute("aria-checked", option.chosen);
    button.setAttribute("aria-disabled", Boolean(option.refused));
    button.setAttribute("aria-describedby", `note-${dimension}`);
    if (dimension === "layout") button.setAttribute("aria-label", K3.said(option.label));
    button.tabIndex = option.chosen ? 0 : -1;
    button.classList.toggle("moves", option.moves.length > 0);
    button.classList.toggle("named", dimension === "layout" && Boolean(option.note));
    const small = dimension === "hardware" ? el("span", { class: "chip-note", translate: "no", text: option.note }) : null;
    fill(button, el("span", { class: "chip-word", translate: option.label ? "no" : null, text: words(dimension, option) }), small);
    return button;
  }

  function update(entry, row) {
    const looks = JSON.stringify([K3.language, K3.chosen("hardware"), row.options.map(({ to, ...seen }) => seen)]);
    const same = entry.looks === looks && !entry.pinned && entry.shown && entry.shown.chosen;
    entry.row = row;
    entry.looks = looks;
    entry.pinned = entry.shown = null;
    fill(entry.pop);
    if (same) {
      entry.shown = row.options.find((option) => option.chosen) || null;
      return;
    }
    entry.title.textContent = t(`row.${row.dimension}`);
    entry.about.textContent = t(`row.${row.dimension}.about`);
    const buttons = row.options.map((option) => dress(entry, option));
    const heads = row.dimension === "layout" ? row.options.map((option) => K3.layouts.place(option.value, K3.chosen("hardware"))) : [];
    const order = JSON.stringify([heads, row.options.map((option) => option.value)]);
    if (entry.order !== order) {
      entry.order = order;
      const focused = document.activeElement;
      entry.chips.replaceChildren(...(heads.length ? grouped(buttons, heads) : buttons));
      if (focused && entry.chips.contains(focused)) focused.focus();
    }
    if (!row.options.some((option) => option.chosen)) buttons[0].tabIndex = 0;
    show(entry);
  }

  /** Layouts that take as many GPUs and nodes stand together, under what they take. */
  function grouped(buttons, heads) {
    const groups = new Map();
    buttons.forEach((button, at) => groups.set(heads[at], [...(groups.get(heads[at]) || []), button]));
    return [...groups].map(([head, all]) =>
      el("div", { class: "chip-group" }, el("span", { class: "chip-head", "aria-hidden": "true", text: head }), el("div", { class: "chips" }, all)),
    );
  }

  function draw(rows) {
    for (const row of rows) update(made.get(row.dimension) || build(row), row);
  }

  return { draw, moved, named, words, pin: (dimension, value) => pin(made.get(dimension), value), dismiss, onTake: (run) => (take = run), onLook: (run) => (look = run) };
})();
