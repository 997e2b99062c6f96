// The command: every part that a rule has set can be pointed at, tapped or reached with the arrow keys.
"use strict";
K3.command = (() => {
  const { el, t, data, fill, $, origin, copy, download } = K3;
  let written = null;
  let choose = () => {};

  /** The text, byte for byte as `k3 recipe` prints it. */
  const text = () => (written ? written.lines.map((line) => line.map((part) => part[0]).join("")).join("\n") : "");

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
      button.addEventListener("mouseenter", () => one.refused && refuse(one));
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
    fill($("why"), el("p", { class: "why-what" }, data(part.textContent, "code")), written.reasons[number].map(reason));
  }

  function reason(one) {
    return el("div", { class: "reason" }, el("p", {}, data(one.why)), el("p", { class: "hint" }, origin(one), " ", data(one.rule, "code", { class: "rule" })));
  }

  function lines() {
    const code = el("pre", { class: "code", tabindex: "-1", translate: "no", lang: "en" });
    for (const line of written.lines) {
      const row = el("span", { class: "line" });
      for (const [words, number] of line) {
        if (number < 0) row.append(words);
        else row.append(part(words, number));
      }
      row.append("\n");
      code.append(row);
    }
    const parts = [...code.querySelectorAll(".part")];
    if (parts.length) parts[0].tabIndex = 0;
    code.addEventListener("keydown", (event) => arrows(event, parts));
    return code;
  }

  function part(words, number) {
    const button = el("button", { type: "button", class: "part", tabindex: "-1", "aria-describedby": "why", text: words });
    const shown = () => explain(button, number);
    button.addEventListener("mouseenter", shown);
    button.addEventListener("focus", shown);
    button.addEventListener("click", shown);
    return button;
  }

  function draw(answer, form) {
    const same = written && answer.written && JSON.stringify(written) === JSON.stringify(answer.written) && $("command").lang === K3.language;
    forms(answer, form);
    if (same) return;
    written = answer.written;
    $("command").lang = K3.language;
    const possible = Boolean(written && written.lines.length);
    for (const id of ["copy", "download"]) $(id).disabled = !possible;
    if (!written) fill($("command"), el("p", { class: "empty", text: t("command.none") }));
    else if (!possible) fill($("command"), el("p", { class: "empty" }, data(written.refused)));
    else fill($("command"), lines());
    fill($("why"), el("p", { class: "hint", text: possible ? t("why.hint") : "" }), possible && answer.checked_by ? el("p", { class: "hint" }, t("checked.by", { parser: answer.checked_by })) : null);
  }

  function same(answer) {
    fill($("same"), t("same"), data(answer.command, "code"));
  }

  $("copy").addEventListener("click", () => copy(text(), $("copy")));
  $("download").addEventListener("click", () => download(written.file, text()));
  $("copy-client").addEventListener("click", () => copy($("client").textContent, $("copy-client")));

  return { draw: (answer, form) => (draw(answer, form), same(answer)), text, reason, onForm: (run) => (choose = run) };
})();
