// What the command needs, the client, published figures, and the doctor of copied commands.
"use strict";
K3.more = (() => {
  const { el, t, has, data, fill, $, origin, number } = K3;
  const LIMIT = 65536;

  function needs(answer) {
    const blocks = [];
    if (answer.image) blocks.push(group("needs.image", [setting(answer.image.value, answer.image.why)]));
    blocks.push(group("needs.environment", answer.environment.map((one) => setting(`${one.name}=${one.value}`, one.why, one.roles)), "needs.none"));
    blocks.push(group("needs.patches", answer.patches.map((one) => setting(one.name, one.why)), "needs.no.patches"));
    blocks.push(group("needs.parsers", answer.parsers.map((one) => setting(`--${one.name} ${one.value}`, one.why)), "needs.no.parsers"));
    blocks.push(group("needs.notes", answer.notes.map((note) => el("li", {}, data(note)))));
    fill($("needs"), blocks);
  }

  const group = (title, items, none) =>
    el("div", { class: "group" }, el("h3", { text: t(title) }), items.length ? el("ul", { class: "settings" }, items) : el("p", { class: "hint", text: none ? t(none) : "" }));

  function setting(text, why, roles = []) {
    return el("li", {}, data(text, "code"), roles.flatMap((role) => [" ", el("span", { class: "tag", text: t(`role.${role}`) })]), el("p", { class: "setting-why" }, data(why.why), " ", origin(why)));
  }

  function client(answer) {
    $("client").textContent = answer.client;
  }

  const metric = (name) => (has(`metric.${name}`) ? t(`metric.${name}`) : name);

  function figures(answer) {
    if (!answer.figures.length) {
      fill($("figures"), el("p", { class: "hint", text: t("figures.none") }));
      return;
    }
    const near = answer.figures.filter((one) => one.same_engine);
    const far = answer.figures.filter((one) => !one.same_engine);
    const others = far.length ? el("details", { class: "series others" }, el("summary", { text: t("figures.others", { count: far.length }) }), far.map((one) => series(one, false))) : null;
    fill($("figures"), near.map((one, at) => series(one, at === 0)), others);
  }

  function series(one, open) {
    const size = one.same_size ? el("span", { class: "tag", text: t("figures.same.size") }) : "";
    const head = el("summary", {}, data(one.setting), t("comma"), data(one.setup, "span", {}, K3.listed(one.setup, ",")), " ", size);
    return el("details", { class: "series", open }, head, table(one), el("p", { class: "hint" }, t("origin.measured"), t("colon"), K3.source(one.source, one.url), one.notes ? [". ", data(one.notes)] : ""));
  }

  function table(one) {
    const names = [...new Set(one.runs.flatMap((run) => Object.keys(run.metrics)))];
    const cell = (value) => (value === null || value === undefined ? "" : typeof value === "number" ? number(value, Number.isInteger(value) ? 0 : 1) : K3.said(String(value)));
    const columns = [
      [t("figures.tokens"), (run) => (run.isl === null ? "" : `${cell(run.isl)} / ${cell(run.osl)}`)],
      [t("figures.concurrency"), (run) => cell(run.concurrency)],
      ...names.map((name) => [metric(name), (run) => cell(run.metrics[name])]),
    ].filter(([, value]) => one.runs.some((run) => value(run) !== ""));
    return el(
      "div",
      { class: "scroll", tabindex: "0", role: "group", "aria-label": t("figures") },
      el(
        "table",
        { class: "table narrow" },
        el("thead", {}, el("tr", {}, columns.map(([text]) => el("th", { scope: "col", class: "figure", text })))),
        el("tbody", {}, one.runs.map((run) => el("tr", {}, columns.map(([, value]) => el("td", { class: "figure", translate: "no", text: value(run) }))))),
      ),
    );
  }

  function checked(result) {
    const several = result.roles.length > 0;
    const about = several ? el("span", { text: t("check.several", { count: result.roles.length }) }) : read(result);
    fill($("checked"), el("p", { class: "verdict" }, word(result.good), about), assumed(result), faults(result), result.roles.map(role));
  }

  const word = (good) => el("span", { class: "verdict-word", "data-verdict": good ? "fits" : "does not fit", text: t(good ? "check.good" : "check.bad") });
  const read = (one) => el("span", {}, data(`${one.engine} ${one.version} ${one.model}`.trim()), t("comma"), t("check.by", { parser: K3.said(one.checked_by) }));
  const assumed = (one) => one.assumed.map((text) => el("p", { class: "hint" }, t("check.assumed"), data(text)));
  const faults = (one) => (one.faults.length ? el("ul", { class: "faults" }, one.faults.map(fault)) : null);

  function fault(one) {
    return el("li", { class: `fault ${one.weight}` }, el("p", {}, el("span", { class: "tag", text: t(`weight.${one.weight}`) }), " ", data(one.what, "strong")), el("p", {}, one.why === `${one.what}.` ? null : [data(one.why), K3.gap()], data(one.fix)), el("p", { class: "hint" }, K3.source(one.source, one.url), " ", data(one.rule, "code", { class: "rule" })));
  }

  /** One command of several. */
  function role(one) {
    const line = one.line ? t("check.line", { line: one.line }) : "";
    const place = one.place ? [data(one.place, "code"), line ? t("comma") : ""] : null;
    return el(
      "section",
      { class: "checked-role" },
      el("h3", {}, data(one.name), " ", place || line ? el("span", { class: "hint" }, place, line) : null),
      el("p", {}, el("strong", { class: one.good ? "fine" : "trouble", text: t(one.good ? "check.good" : "check.bad") }), t("comma"), read(one)),
      assumed(one),
      faults(one),
    );
  }

  const trouble = (error) => fill($("checked"), el("p", { class: "trouble" }, el("strong", { text: t("check.trouble") }), K3.trouble(error)));

  $("check-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = $("check-text").value;
    if (new Blob([text]).size > LIMIT) {
      fill($("checked"), el("p", { class: "trouble", text: t("check.long", { size: LIMIT / 1024 }) }));
      return;
    }
    if (!text.trim()) {
      fill($("checked"), el("p", { class: "trouble", text: t("check.empty") }));
      return;
    }
    try {
      checked(await K3.source_of.check(text, K3.chosen("hardware"), K3.chosen("parsers") || "kimi_k3"));
    } catch (error) {
      trouble(error);
    }
  });

  function draw(answer) {
    K3.once("needs", [answer.image, answer.environment, answer.patches, answer.parsers, answer.notes], () => needs(answer));
    K3.once("client", answer.client, () => client(answer));
    K3.once("figures", answer.figures, () => figures(answer));
    $("check-hint").textContent = t(K3.facts.served ? "check.hint" : "check.exported");
    $("check-text").disabled = $("check-run").disabled = !K3.facts.served;
  }

  return { draw };
})();
