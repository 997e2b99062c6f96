// The page: one state, and one step after another.
"use strict";
(() => {
  const { t, $, el, data, fill, notice, kept, facts } = K3;
  const beginning = () => ({ selection: facts.start, context: facts.context, concurrency: facts.concurrency, form: "docker" });
  let state = beginning();
  let answer = null;

  K3.chosen = (name) => new URLSearchParams(state.selection).get(name);

  function translate() {
    for (const node of document.querySelectorAll("[data-t]")) node.textContent = t(node.dataset.t);
    document.title = `k3stack: ${t("title")}`;
    $("check-text").placeholder = t("check.placeholder");
    theme(kept.get("theme") || document.documentElement.dataset.theme || "auto");
    const covers = facts.served ? t("foot.served") : t("foot.exported", { covers: facts.covers.join(", ") });
    fill($("foot"), el("p", {}, el("span", { translate: "no", text: `k3stack ${facts.version}` }), " · ", covers), el("p", { text: t("foot.honest") }));
    if (!facts.served) $("machine").hidden = true;
  }

  function draw(compared = false) {
    K3.rows.draw(answer.rows);
    K3.memory.draw(answer, waits);
    K3.command.draw(answer, state.form, compared);
    K3.more.draw(answer);
    K3.tell($("verdict").textContent);
  }

  const steps = [];
  let working = false;
  /** What moved along with clicks that follow one another faster than answers: all of it is shown, and undone together. */
  let burst = null;
  const waits = (name) => steps.some((step) => step.name === name);

  /** Steps come one after another, each from where the last one led, so that no click is lost; a newer one of the same row replaces one that waits. */
  function step(name, run) {
    const at = steps.findIndex((one) => one.name === name);
    if (at >= 0) steps.splice(at, 1);
    steps.push({ name, run });
    if (!working) work();
  }

  async function work() {
    working = true;
    document.documentElement.setAttribute("aria-busy", "true");
    while (steps.length) {
      const { name, run } = steps.shift();
      try {
        await run();
      } catch (error) {
        steps.length = 0;
        failed(error, () => step(name, run));
      }
    }
    working = false;
    burst = null;
    document.documentElement.removeAttribute("aria-busy");
  }

  /** What went wrong. The page stays as it was; where nobody answered, the step can be tried again. */
  function failed(error, again) {
    if (answer) K3.memory.draw(answer);
    if (error.gone) notice([el("strong", { text: t("gone") }), t(facts.served ? "gone.served" : "gone.exported")], { text: t("again"), run: again });
    else notice([answer ? K3.trouble(error) : `${t("failed")}${error.message}`]);
  }

  const answers = new Map();
  const REMEMBERED = 60;
  /** The answer to a state; what was looked at a moment ago is not asked for again. */
  async function ask(next) {
    const key = K3.link.write(next);
    if (!answers.has(key)) {
      answers.set(key, K3.source_of.ask(next));
      answers.get(key).catch(() => answers.delete(key));
      if (answers.size > REMEMBERED) answers.delete(answers.keys().next().value);
    }
    return answers.get(key);
  }

  /** Ask for a state and show it. */
  async function go(next, remember) {
    const found = await ask(next);
    const compared = next.form === state.form;
    state = { ...next, selection: found.selection, context: found.context, concurrency: found.concurrency };
    answer = found;
    draw(compared);
    history[remember](null, "", K3.link.write(state));
  }

  const optionOf = (dimension, value) => answer.rows.find((row) => row.dimension === dimension).options.find((one) => one.value === value);

  const undoTo = (before) => ({ text: t("undo"), run: () => step("undo", () => go(before, "pushState")) });

  async function take(dimension, value) {
    const option = optionOf(dimension, value);
    if (!option || option.chosen) return;
    if (option.refused) {
      K3.rows.pin(dimension, value);
      return;
    }
    const before = { ...state };
    await go({ ...state, selection: option.to }, "pushState");
    if (option.moves.length) {
      const head = el("strong", { text: t("moved", { row: t(`row.${dimension}`), value: K3.rows.words(dimension, option) }) });
      burst = { before: burst ? burst.before : before, lines: [...(burst ? burst.lines : []), head, ...option.moves.map(K3.rows.moved)] };
    }
    if (burst) notice(burst.lines, undoTo(burst.before));
    else K3.closed();
  }

  const slide = (name, value) => step(name, () => go({ ...state, [name]: value }, "replaceState"));

  /** Take what the planner says would fit, and say what it changed. */
  async function change(role, way) {
    const before = { ...state };
    await go(K3.link.changed(state, role, way), "pushState");
    if (document.activeElement === document.body) $("results").focus({ preventScroll: true });
    const [old, now] = [before, state].map((one) => new URLSearchParams(one.selection));
    const layout = (fields) => [fields.get("prefill"), fields.get("layout")].filter(Boolean).join(";");
    const moves = [
      ...["context", "concurrency"].map((name) => [t(`slider.${name}`), K3.number(before[name]), K3.number(state[name])]),
      [t("row.layout"), K3.layouts.name(layout(old)), K3.layouts.name(layout(now))],
      ...["utilization", "batched_tokens"].map((name) => [t(`row.${name}`), old.get(name) || t("usual"), now.get(name) || t("usual")]),
    ].filter(([, was, is]) => was !== is);
    notice(moves.map(([row, was, is]) => el("span", { class: "moved", text: t("move", { row, before: was, after: is }) })), undoTo(before));
  }

  /** The answer that a change would lead to; null where this page cannot say. */
  const attempt = (role, way) => ask(K3.link.changed(state, role, way)).catch(() => null);

  /** Whether another selection fits, with the sliders as they are. */
  async function look(selection) {
    const key = { ...state, selection };
    try {
      return K3.memory.foretold(await ask(key));
    } catch {
      return null;
    }
  }

  async function restore() {
    const { fields, said } = K3.link.read(location.hash);
    const begin = beginning();
    for (const name of ["context", "concurrency", "form"]) if (fields.has(name)) begin[name] = fields.get(name);
    const selection = K3.link.selection(fields);
    try {
      answer = await ask(selection ? { ...begin, selection } : begin);
    } catch (error) {
      if (!selection || error.gone) throw error;
      const found = await K3.link.replay(fields, ask, begin);
      answer = found.answer;
      said.push(...(found.said.length ? found.said : [K3.trouble(error)]));
    }
    for (const name of ["context", "concurrency"]) {
      if (answer[name] !== begin[name]) said.push(t("link.stop", { name: t(`slider.${name}`), asked: K3.number(begin[name]), got: K3.number(answer[name]) }));
    }
    state = { ...begin, selection: answer.selection, context: answer.context, concurrency: answer.concurrency };
    draw();
    for (const part of ["tools", "page"]) $(part).hidden = false;
    history.replaceState(null, "", K3.link.write(state));
    if (said.length) notice([el("strong", { text: t("link.said") }), ...said]);
    else K3.closed();
  }

  async function machine() {
    const found = await K3.source_of.machine();
    if (!found.hardware) {
      notice([el("strong", { text: t("machine.none") }), ...found.missing.map((text) => data(text))]);
      return;
    }
    const option = optionOf("hardware", found.hardware);
    const said = el("strong", { text: t("machine.found", { count: found.count, name: found.name, memory: K3.gb(found.memory_bytes) }) });
    if (option.refused) {
      notice([said, el("span", {}, data(option.refused.why), K3.gap(), data(option.refused.fix))]);
      return;
    }
    await take("hardware", option.value);
    const before = { ...state };
    const layout = await takeLayoutOf(found.count);
    const takes = answer.gpus === found.count ? [] : [t("machine.takes", { gpus: t("gpus", { count: answer.gpus }), nodes: t(answer.nodes === 1 ? "node" : "nodes", { count: answer.nodes }) })];
    notice([said, ...takes, ...(burst ? burst.lines : []), ...layout], burst || layout.length ? undoTo(burst ? burst.before : before) : null);
  }

  /** A layout for as many GPUs as there are, where one is possible; one that was published before others. What was taken, in a line. */
  async function takeLayoutOf(count) {
    if (answer.gpus === count) return [];
    const { options } = answer.rows.find((row) => row.dimension === "layout");
    const all = options.filter((one) => !one.refused && K3.layouts.gpus(one.value) === count);
    const layout = all.find((one) => one.note) || all[0];
    if (!layout) return [];
    const before = options.find((one) => one.chosen).value;
    await take("layout", layout.value);
    return [K3.rows.moved({ dimension: "layout", before, after: layout.value, said: t("machine.layout", { gpus: t("gpus", { count }) }) })];
  }

  /** What each row is for stands under its title while this is on. */
  function explain(on) {
    $("explain").setAttribute("aria-pressed", on);
    $("choices").classList.toggle("explained", on);
  }

  const LOCAL = ["127.0.0.1", "localhost", "[::1]", ""];
  /** The page's address: shared from a phone, copied elsewhere; one that opens on this machine alone is said to. */
  async function share() {
    const address = location.href;
    if (navigator.share && matchMedia("(pointer: coarse)").matches) {
      const done = await navigator.share({ title: document.title, url: address }).then(() => true, (error) => error.name === "AbortError");
      if (done) return;
    }
    const done = await K3.copy(address, $("link"));
    if (!done) {
      const shown = el("input", { class: "address", readonly: true, value: address, "aria-label": t("link") });
      notice([t("copy.address"), shown]);
      shown.select();
    } else if (LOCAL.includes(location.hostname)) notice([t(facts.served ? "link.local" : "link.file"), el("code", { translate: "no", text: answer.command })]);
  }

  const THEMES = ["auto", "light", "dark"];
  function theme(name) {
    if (name === "auto") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.dataset.theme = name;
    const shown = THEMES.includes(name) ? name : "auto";
    fill($("theme"), el("span", { class: "wide", text: t("theme.word") }), el("span", { class: "short", "aria-hidden": "true", text: "◐ " }), t(`theme.${shown}`));
    $("theme").setAttribute("aria-label", t("theme.word") + t(`theme.${shown}`));
  }

  $("theme").addEventListener("click", () => {
    const now = kept.get("theme") || document.documentElement.dataset.theme || "auto";
    const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
    kept.set("theme", next);
    theme(next);
  });
  $("language").addEventListener("click", () => {
    K3.speak(K3.language === "en" ? "zh" : "en");
    kept.set("language", K3.language);
    translate();
    draw();
  });
  $("explain").addEventListener("click", () => {
    const on = $("explain").getAttribute("aria-pressed") !== "true";
    kept.set("explain", on ? "on" : "off");
    explain(on);
  });
  $("link").addEventListener("click", share);
  $("machine").addEventListener("click", () => step("machine", machine));
  $("restart").addEventListener("click", () => step("restart", () => go(beginning(), "pushState").then(K3.closed)));
  for (const node of document.querySelectorAll("[data-jump]")) {
    node.addEventListener("click", (event) => {
      event.preventDefault();
      $(node.dataset.jump).focus({ preventScroll: true });
      $(node.dataset.jump).scrollIntoView();
    });
  }
  addEventListener("popstate", () => {
    steps.length = 0;
    step("restore", restore);
  });
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !K3.rows.dismiss() && !K3.closed()) K3.command.dismiss();
  });
  K3.rows.onTake((dimension, value) => step(dimension, () => take(dimension, value)));
  K3.rows.onLook(look);
  K3.memory.onSlide(slide);
  K3.memory.onChange((role, way) => step("change", () => change(role, way)));
  K3.memory.onAttempt(attempt);
  K3.command.onForm((form) => step("form", () => go({ ...state, form }, "replaceState")));

  new IntersectionObserver(([seen]) => $("dock").classList.toggle("away-from", !seen.isIntersecting)).observe($("verdict"));

  K3.speak(kept.get("language") || (navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en"));
  translate();
  explain(kept.get("explain") === "on");
  step("restore", async () => {
    try {
      await restore();
    } finally {
      performance.mark("k3-ready");
      document.documentElement.setAttribute("data-ready", "");
    }
  });
})();
