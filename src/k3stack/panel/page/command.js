// The command: every part that a rule has set can be pointed at, tapped or reached with the arrow keys.
"use strict";
K3.command = (() => {
  const { el, t, data, fill, $, origin, copy, download, pointed } = K3;
  let written = null;
  let before = null;
  let choose = () => {};

  /** The text, byte for byte as `k3 recipe` prints it. */
  const text = () => textsOf(written).join("\n");

  const textsOf = (command) => (command ? command.lines.map((line) => line.map((part) => part[0]).join("")) : []);

  function forms(answer, form) {
    const box = el("div", { class: "chips tabs", role: "radiogroup", "aria-label": t("row.form") });
    for (const one of answer.forms) {
      const button = el("button", {
        type: "button", role: "radio", class: "chip", id: `o-form-${one.form}`, "aria-checked": String(one.form === form),
        "aria-disabled": String(Boolean(one.refused)), "aria-describedby": one.refused ? "why" : null, text: t(`form.${one.form}`),
      });
      button.tabIndex = one.form === form ? 0 : -1;
      button.addEventListener("click", () => (one.refused ? refuse(one) : choose(one.form)));
      button.addEventListener("focus", () => one.refused && refuse(one));
      pointed(button, () => one.refused && refuse(one));
      box.append(button);
    }
    box.addEventListener("keydown", (event) => arrows(event, [...box.children]));
    const focused = document.activeElement && document.activeElement.id;
    fill($("forms"), box);
    if (focused && focused.startsWith("o-form-") && $(focused)) $(focused).focus();
  }

  const refuse = (one) => fill($("why"), el("p", {}, el("strong", { text: t("not.possible") }), data(one.refused)));

  function arrows(event, all) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const here = all.indexOf(document.activeElement);
    if (here < 0 || !(step || event.key === "Home" || event.key === "End")) return;
    event.preventDefault();
    const next = event.key === "Home" ? 0 : event.key === "End" ? all.length - 1 : (here + step + all.length) % all.length;
    all[here].tabIndex = -1;
    all[next].tabIndex = 0;
    all[next].focus();
  }

  function explain(part, number) {
    for (const other of $("command").querySelectorAll(".part.on")) other.classList.remove("on");
    part.classList.add("on");
    $("why").classList.add("open");
    fill($("why"), el("p", { class: "why-what", "aria-hidden": "true" }, code(part.textContent)), written.reasons[number].map(reason));
  }

  function reason(one) {
    return el("div", { class: "reason" }, el("p", {}, data(one.why)), el("p", { class: "hint" }, origin(one), " ", data(one.rule, "code", { class: "rule" })));
  }

  /** A long line goes on below, further in than it began; by the style of an element, which the policy allows to scripts alone. */
  const DEEPEST = 10;
  function lines(fresh) {
    const box = el("pre", { class: "code", tabindex: "-1", translate: "no", lang: "en" });
    written.lines.forEach((line, at) => {
      const row = el("span", { class: fresh.has(at) ? "line fresh" : "line" });
      for (const [words, number] of line) row.append(number < 0 ? words : part(words, number));
      const indent = /^ */.exec(row.textContent)[0].length;
      row.style.setProperty("--inward", `${Math.min(indent, matchMedia("(max-width: 560px)").matches ? 4 : DEEPEST) + 4}ch`);
      if (!row.textContent) row.append("\n");
      box.append(row);
    });
    const parts = [...box.querySelectorAll(".part")];
    if (parts.length) parts[0].tabIndex = 0;
    box.addEventListener("keydown", (event) => arrows(event, parts));
    box.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      event.target.click();
    });
    return box;
  }

  /** Words and no button element, so that a reader can mark and copy across them and a line can break inside. */
  function part(words, number) {
    const made = el("span", { role: "button", class: "part", tabindex: "-1", "aria-describedby": "why", text: words });
    const shown = () => explain(made, number);
    pointed(made, shown);
    made.addEventListener("focus", shown);
    made.addEventListener("click", shown);
    return made;
  }

  const code = (words) => el("code", { translate: "no", lang: "en", text: words });
  const trimmed = (line) => line.replace(/ \\$/, "").trim();

  /** What the last choice changed: the numbers of the lines that are new, and the texts that went. */
  function difference() {
    if (!before || before.form !== written.form) return null;
    const had = textsOf(before).map(trimmed);
    const have = textsOf(written).map(trimmed);
    const fresh = new Set();
    have.forEach((line, at) => {
      const found = had.indexOf(line);
      if (found >= 0) had.splice(found, 1);
      else fresh.add(at);
    });
    const told = (line) => line !== "" && !line.startsWith("#");
    return { fresh, came: [...fresh].map((at) => have[at]).filter(told), went: had.filter(told) };
  }

  const MOST = 8;
  function changes({ came, went }) {
    if (!came.length && !went.length) return [el("p", { class: "hint", text: t("changed.nothing") })];
    const list = (all, mark) => [
      ...all.slice(0, MOST).map((line) => el("li", { class: mark }, el("span", { class: "heard", text: t(`changed.${mark}`) }), code(line))),
      all.length > MOST ? el("li", { class: "hint", text: t("changed.more", { count: all.length - MOST }) }) : null,
    ];
    return [el("p", { class: "why-title", text: t("changed") }), el("ul", { class: "changed" }, [...list(went, "went"), ...list(came, "came")].filter(Boolean))];
  }

  function hints(answer, different) {
    const checked = answer.checked_by ? el("p", { class: "hint" }, t("checked.by", { parser: K3.said(answer.checked_by) })) : null;
    return [...(different ? changes(different) : []), el("p", { class: "hint", text: t("why.hint") }), checked];
  }

  function draw(answer, form, compared) {
    const same = written && answer.written && JSON.stringify(written) === JSON.stringify(answer.written) && $("command").lang === K3.language;
    forms(answer, form);
    if (same && !compared) return;
    if (written && written.lines.length) before = written;
    written = answer.written;
    $("command").lang = K3.language;
    const possible = Boolean(written && written.lines.length);
    const different = compared && possible ? difference() : null;
    for (const id of ["copy", "download"]) $(id).disabled = !possible;
    if (!written) fill($("command"), el("p", { class: "empty", text: t("command.none") }));
    else if (!possible) fill($("command"), el("p", { class: "empty" }, data(written.refused)));
    else if (!same) replace(lines(different ? different.fresh : new Set()));
    else for (const line of $("command").querySelectorAll(".fresh")) line.classList.remove("fresh");
    put(possible ? hints(answer, different) : []);
  }

  /** The command in place of the one before, scrolled as that was; where nothing that is new would be in sight, to the first that is. */
  function replace(box) {
    const old = $("command").querySelector(".code");
    const at = old ? old.scrollTop : 0;
    fill($("command"), box);
    box.scrollTop = at;
    const fresh = [...box.querySelectorAll(".fresh")].filter((line) => !line.textContent.startsWith("#"));
    const seen = (line) => line.offsetTop >= box.scrollTop && line.offsetTop + line.offsetHeight <= box.scrollTop + box.clientHeight;
    if (fresh.length && !fresh.some(seen)) box.scrollTop = fresh[0].offsetTop - box.clientHeight / 3;
  }

  function put(...shown) {
    $("why").classList.remove("open");
    fill($("why"), ...shown);
  }

  /** Put an explanation away; whether there was one. */
  function dismiss() {
    const part = $("command").querySelector(".part.on");
    if (!part) return false;
    part.classList.remove("on");
    put(el("p", { class: "hint", text: t("why.hint") }));
    return true;
  }

  function same(answer) {
    fill($("same"), t("same"), code(answer.command));
  }

  /** What every part is for, on paper: each reason once, with all the parts that have it. */
  function sheet() {
    const found = new Map();
    for (const [words, number] of (written ? written.lines : []).flat()) {
      if (number >= 0) found.set(number, new Set([...(found.get(number) || []), words]));
    }
    return [...found].map(([number, parts]) => el("div", { class: "sheet-reason" }, el("p", {}, [...parts].flatMap((words, at) => [at ? t("comma") : "", code(words)])), written.reasons[number].map(reason)));
  }

  /** Mark the command, for a reader whose browser will not copy. */
  function mark() {
    const box = $("command").querySelector(".code");
    if (box) getSelection().selectAllChildren(box);
  }

  $("copy").addEventListener("click", async () => {
    if (await copy(text(), $("copy"))) return;
    mark();
    K3.notice([t("copy.marked")]);
  });
  $("download").addEventListener("click", () => download(written.file, text()));
  $("copy-client").addEventListener("click", () => copy($("client").textContent, $("copy-client")));
  $("copy-same").addEventListener("click", () => copy($("same").querySelector("code").textContent, $("copy-same")));

  return { draw: (answer, form, compared) => (draw(answer, form, compared), same(answer)), text, reason, sheet, dismiss, onForm: (run) => (choose = run) };
})();
