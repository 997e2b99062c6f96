// The page: one state, one question at a time, the newest one counts.
"use strict";
(() => {
  const { t, $, el, data, fill, notice, kept, facts } = K3;
  let state = { selection: facts.start, context: facts.context, concurrency: facts.concurrency, form: "docker" };
  let answer = null;
  let asked = 0;

  K3.chosen = (name) => new URLSearchParams(state.selection).get(name);

  function translate() {
    for (const node of document.querySelectorAll("[data-t]")) node.textContent = t(node.dataset.t);
    document.title = `k3stack: ${t("title")}`;
    $("check-text").placeholder = t("check.placeholder");
    theme(kept.get("theme") || "auto");
    const covers = facts.served ? t("foot.served") : t("foot.exported", { covers: facts.covers.join(", ") });
    fill($("foot"), el("p", {}, el("span", { translate: "no", text: `k3stack ${facts.version}` }), " · ", covers), el("p", { text: t("foot.honest") }));
    if (!facts.served) $("machine").hidden = true;
  }

  function draw() {
    K3.rows.draw(answer.rows);
    K3.memory.draw(answer);
    K3.command.draw(answer, state.form);
    K3.more.draw(answer);
  }

  /** Ask for a state and show it; false when it was overtaken or refused. */
  async function go(next, remember) {
    const mine = ++asked;
    document.documentElement.setAttribute("aria-busy", "true");
    try {
      const found = await K3.source_of.ask(next);
      if (mine !== asked) return false;
      state = { ...next, selection: found.selection };
      answer = found;
    } catch (error) {
      if (mine === asked) notice([K3.trouble(error)]);
      return false;
    } finally {
      if (mine === asked) document.documentElement.removeAttribute("aria-busy");
    }
    draw();
    if (remember) history[remember](null, "", K3.link.write(state));
    return true;
  }

  async function take(dimension, option) {
    const before = { ...state };
    const moves = option.moves;
    const done = await go({ ...state, selection: option.to }, "pushState");
    if (!done) return;
    if (moves.length) {
      notice([el("strong", { text: t("moved", { row: t(`row.${dimension}`), value: K3.rows.words(dimension, option) }) }), ...moves.map(K3.rows.moved)], {
        text: t("undo"),
        run: () => go(before, "pushState"),
      });
    } else fill($("notices"));
  }

  let waiting = null;
  /** Sliders ask as fast as answers come, never faster. */
  async function slide(name, value) {
    const running = waiting !== null;
    waiting = { ...(waiting || state), [name]: value };
    if (running) return;
    while (waiting) {
      const next = waiting;
      const done = await go({ ...state, context: next.context, concurrency: next.concurrency }, "replaceState");
      if (waiting === next || !done) waiting = null;
    }
  }

  async function restore() {
    const { fields, said } = K3.link.read(location.hash);
    const begin = { selection: facts.start, context: facts.context, concurrency: facts.concurrency, form: "docker" };
    for (const name of ["context", "concurrency", "form"]) if (fields.has(name)) begin[name] = fields.get(name);
    const selection = K3.link.selection(fields);
    try {
      answer = await K3.source_of.ask(selection ? { ...begin, selection } : begin);
    } catch (error) {
      if (!selection) throw error;
      const found = await K3.link.replay(fields, K3.source_of.ask, begin);
      answer = found.answer;
      said.push(...(found.said.length ? found.said : [K3.trouble(error)]));
    }
    for (const name of ["context", "concurrency"]) {
      if (answer[name] !== begin[name]) said.push(t("link.stop", { name: t(`slider.${name}`), asked: K3.number(begin[name]), got: K3.number(answer[name]) }));
    }
    state = { ...begin, selection: answer.selection, context: answer.context, concurrency: answer.concurrency };
    asked++;
    draw();
    history.replaceState(null, "", K3.link.write(state));
    if (said.length) notice([el("strong", { text: t("link.said") }), ...said]);
  }

  async function machine() {
    const found = await K3.source_of.machine();
    if (!found.hardware) {
      notice([el("strong", { text: t("machine.none") }), ...found.missing.map((text) => data(text))]);
      return;
    }
    const option = answer.rows.find((row) => row.dimension === "hardware").options.find((one) => one.value === found.hardware);
    const said = t("machine.found", { count: found.count, name: found.name, memory: K3.gb(found.memory_bytes) });
    if (option.refused) notice([el("strong", { text: said }), el("span", {}, data(option.refused.why), K3.gap(), data(option.refused.fix))]);
    else if (option.chosen) notice([said]);
    else {
      await take("hardware", option);
      if (!option.moves.length) notice([said]);
    }
  }

  const THEMES = ["auto", "light", "dark"];
  function theme(name) {
    if (name === "auto") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.dataset.theme = name;
    $("theme").textContent = t(`theme.${THEMES.includes(name) ? name : "auto"}`);
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
  $("link").addEventListener("click", () => K3.copy(location.href, $("link")));
  $("machine").addEventListener("click", () => machine().catch((error) => notice([error.message])));
  for (const node of document.querySelectorAll("[data-jump]")) {
    node.addEventListener("click", (event) => {
      event.preventDefault();
      $(node.dataset.jump).focus({ preventScroll: true });
      $(node.dataset.jump).scrollIntoView();
    });
  }
  addEventListener("popstate", () => restore().catch(failed));
  K3.rows.onTake((dimension, option) => take(dimension, option));
  K3.memory.onSlide((name, value) => slide(name, value));
  K3.command.onForm((form) => go({ ...state, form }, "replaceState"));

  const failed = (error) => notice([`${t("failed")}${error.message}`]);
  K3.speak(kept.get("language") || (navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en"));
  translate();
  restore().catch(failed).finally(() => {
    performance.mark("k3-ready");
    document.documentElement.setAttribute("data-ready", "");
  });
})();
