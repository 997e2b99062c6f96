// The verdict, the memory of a GPU, the sliders and what limits.
"use strict";
K3.memory = (() => {
  const { el, t, data, fill, $, number, gb, tokens } = K3;
  const KINDS = ["weights", "workspace", "state", "kv"];
  const sliders = {};
  let slid = () => {};
  let change = () => {};
  let attempt = async () => null;
  let drawn = 0;
  const AT_REST_MS = 200;

  /** The role that decides: the first that does not fit, else the one with the least left. */
  function decisive(memory) {
    const short = memory.find((one) => !["fits", "tight"].includes(one.verdict));
    return short || [...memory].sort((a, b) => a.left_bytes - b.left_bytes)[0];
  }

  function sentence(one) {
    const values = {
      need: gb(one.total_bytes, 2), have: gb(one.budget_bytes, 2), left: gb(one.left_bytes, 2), missing: gb(-one.left_bytes, 2),
    };
    if (one.verdict === "not supported") return data(one.refused);
    if (one.verdict === "does not fit") return t(one.total_bytes <= one.budget_bytes ? "verdict.split" : "verdict.short", values);
    return t(one.verdict === "tight" ? "verdict.tight" : "verdict.fits", values);
  }

  function verdict(answer) {
    const one = decisive(answer.memory);
    const word = t(`verdict.${answer.verdict}.word`);
    const head = t("verdict.head", { gpus: t("gpus", { count: answer.gpus }), nodes: t(answer.nodes === 1 ? "node" : "nodes", { count: answer.nodes }) });
    const role = one && answer.memory.length > 1 ? t("verdict.role", { role: t(`role.${one.role}`) }) : "";
    fill(
      $("verdict"),
      el("span", { class: "verdict-word", "data-verdict": answer.verdict, text: word }),
      el("span", { class: "verdict-more" }, head, role, one ? sentence(one) : ""),
    );
    const figures = one && one.verdict !== "not supported" ? `${gb(one.total_bytes)} / ${gb(one.budget_bytes)}` : "";
    fill($("dock"), el("span", { class: "verdict-word", "data-verdict": answer.verdict, text: word }), el("span", { class: "figure", text: figures }), el("span", { class: "dock-go", text: t("dock") }));
  }

  /** Whether another choice fits, in a line: what a pointer or the focus that rests on it is told. */
  function foretold(answer) {
    const one = decisive(answer.memory);
    const place = t("verdict.head", { gpus: t("gpus", { count: answer.gpus }), nodes: t(answer.nodes === 1 ? "node" : "nodes", { count: answer.nodes }) });
    return el("span", { class: "foretold" }, el("strong", { "data-verdict": answer.verdict, text: t(`verdict.${answer.verdict}.word`) }), t("colon"), place, one ? sentence(one) : "");
  }

  function bar(one, several) {
    const sums = Object.fromEntries(KINDS.map((kind) => [kind, 0]));
    for (const item of one.items) sums[item.kind] += item.size_bytes;
    const free = Math.max(one.budget_bytes - one.total_bytes, 0);
    const outside = one.gpu_bytes - one.budget_bytes;
    const whole = Math.max(one.gpu_bytes, one.total_bytes + outside);
    const over = one.total_bytes - one.budget_bytes;
    const parts = [...KINDS.map((kind) => [kind, sums[kind]]), ["free", free], ["outside", outside]];
    const track = el("div", { class: "bar", role: "img", "aria-label": spoken(one, sums, free) });
    for (const [kind, size] of parts) {
      if (size <= 0) continue;
      const piece = el("span", { class: `piece ${kind}`, title: `${t(`memory.${kind}`)} ${gb(size, 2)}` });
      piece.style.flexGrow = String(size / whole);
      track.append(piece);
    }
    const mark = el("span", { class: "mark", title: t("memory.budget") });
    mark.style.left = `${(Math.min(over > 0 ? one.budget_bytes : whole - outside, whole) / whole) * 100}%`;
    track.append(mark);
    const legend = el(
      "ul",
      { class: "legend" },
      parts.map(([kind, size]) =>
        el("li", {}, el("span", { class: `key ${kind}`, "aria-hidden": "true" }), el("span", { class: "legend-word", text: t(`memory.${kind}`) }), el("span", { class: "figure", text: gb(size, 2) })),
      ),
    );
    const head = several ? el("h3", { class: "role", text: t(`role.${one.role}`) }) : null;
    return el("div", { class: "gpu" }, head, track, legend);
  }

  const spoken = (one, sums, free) =>
    t("memory.spoken", {
      weights: gb(sums.weights), kv: gb(sums.kv), state: gb(sums.state), workspace: gb(sums.workspace), free: gb(free), gpu: gb(one.gpu_bytes),
    });

  function limits(answer) {
    const rows = [];
    drawn++;
    for (const one of answer.memory) {
      const held = one.capacity;
      const pairs = [
        [t("limit.requests"), number(held.full_requests)],
        [t("limit.longest"), number(held.longest_context)],
        [t("limit.tokens"), number(held.kv_tokens)],
        [t("limit.by"), t(`limit.${held.limited_by}`)],
      ];
      if (held.state_ratio !== null) pairs.push([t("limit.ratio"), String(held.state_ratio)]);
      if (answer.memory.length > 1) rows.push(el("h3", { class: "role", text: t(`role.${one.role}`) }));
      rows.push(...inFlight(answer, one));
      rows.push(el("dl", { class: "facts" }, pairs.map(([name, value]) => el("div", {}, el("dt", { text: name }), el("dd", { class: "figure", text: value })))));
      if (one.replicas > 1) rows.push(el("p", { class: "hint", text: t("limit.replicas", { count: one.replicas }) }));
      one.would_fit.forEach((text, at) => rows.push(would(one, text, one.ways[at])));
      for (const note of one.notes) rows.push(el("p", { class: "hint" }, data(note)));
    }
    for (const note of answer.unknown) rows.push(el("p", { class: "hint" }, data(note)));
    fill($("limits"), rows);
  }

  /** What the two sliders mean together: how many of the requests can be of full length, and what the others may be. */
  function inFlight(answer, one) {
    if (!["fits", "tight"].includes(one.verdict) || one.role === "prefill") return [];
    const held = one.capacity;
    const full = Math.min(held.full_requests * one.replicas, answer.concurrency);
    const average = Math.min(Math.floor(held.kv_tokens / Math.ceil(answer.concurrency / one.replicas)), answer.context);
    const values = { count: number(answer.concurrency), full: number(full), context: number(answer.context), average: number(average) };
    return [el("p", { class: "in-flight", text: t(full >= answer.concurrency ? "flight.all" : "flight.some", values) })];
  }

  /** What would fit, with a button that takes it: shown once it was tried, because the other role may be short all the same. */
  function would(one, text, way) {
    const place = el("span", { class: "would-take" });
    const mine = drawn;
    const tryIt = async () => {
      const found = mine === drawn && K3.link.reaches(way) && (await attempt(one.role, way));
      if (found && mine === drawn) fill(place, taking(one.role, way, found));
    };
    setTimeout(tryIt, AT_REST_MS);
    return el("p", { class: "would" }, el("span", {}, el("strong", { text: t("would.fit") }), data(text)), place);
  }

  function taking(role, way, answer) {
    const left = decisive(answer.memory);
    const still = ["fits", "tight"].includes(left.verdict) ? null : el("span", { class: "hint", text: t("would.still", { role: t(`role.${left.role}`) }) });
    return [el("button", { type: "button", class: "tool", text: t("would.take"), onclick: () => change(role, way) }), still];
  }

  /** The words of the bar, for those who do not know them. */
  const meanings = () =>
    el("dl", { class: "words" }, [...KINDS, "free", "outside"].map((kind) => el("div", {}, el("dt", {}, el("span", { class: `key ${kind}`, "aria-hidden": "true" }), " ", t(`memory.${kind}`)), el("dd", { text: t(`memory.${kind}.about`) }))));

  function items(answer) {
    const blocks = answer.memory.map((one) =>
      el(
        "div",
        {},
        answer.memory.length > 1 ? el("h3", { class: "role", text: t(`role.${one.role}`) }) : null,
        el(
          "div",
          { class: "scroll", tabindex: "0", role: "group", "aria-label": t("memory.items") },
          el(
            "table",
            { class: "table ledger", role: "table" },
            el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ["item", "bytes", "label", "formula"].map((name) => el("th", { scope: "col", role: "columnheader", class: name === "bytes" ? "figure" : null, text: t(`items.${name}`) })))),
            el(
              "tbody",
              { role: "rowgroup" },
              one.items.map((item) =>
                el(
                  "tr",
                  { role: "row" },
                  data(item.what, "th", { scope: "row", role: "rowheader" }),
                  el("td", { role: "cell", class: "figure", text: number(item.size_bytes) }),
                  el("td", { role: "cell", class: "label-word", text: t(`origin.${item.origin}`) }),
                  data(item.formula, "td", { role: "cell", class: "formula" }),
                ),
              ),
              el("tr", { class: "sum", role: "row" }, el("th", { scope: "row", role: "rowheader", text: t("items.sum") }), el("td", { role: "cell", class: "figure", text: number(one.total_bytes) }), el("td", { role: "cell" }), el("td", { role: "cell" })),
            ),
          ),
        ),
        el("p", { class: "hint" }, t("memory.gpu", { bytes: number(one.gpu_bytes), origin: t(`origin.${one.gpu_origin}`) }), data(one.gpu_source)),
        el("p", { class: "same" }, t("same"), data(one.command, "code")),
      ),
    );
    fill($("items"), meanings(), blocks);
  }

  const nearest = (stops, value) => stops.reduce((best, stop, at) => (Math.abs(stop - value) < Math.abs(stops[best] - value) ? at : best), 0);

  function slider(name, stops) {
    const input = el("input", { type: "range", id: `s-${name}`, min: 0, max: stops.length - 1, step: 1 });
    const output = el("output", { for: `s-${name}`, class: "figure", id: `v-${name}` });
    const label = el("label", { for: `s-${name}` });
    input.addEventListener("input", () => {
      const value = stops[Number(input.value)];
      say(name, value);
      slid(name, value);
    });
    $("sliders").append(el("div", { class: "slider" }, label, output, input));
    sliders[name] = { input, output, label, stops };
  }

  function say(name, value) {
    const { input, output } = sliders[name];
    output.textContent = name === "context" ? t("tokens", { count: number(value), short: tokens(value) }) : t("requests", { count: number(value) });
    input.setAttribute("aria-valuetext", output.textContent);
  }

  /** A slider that is being moved stays where the hand is; what is drawn may be an answer to an earlier place. */
  function slide(answer, moving) {
    for (const name of ["context", "concurrency"]) {
      const one = sliders[name];
      one.label.textContent = t(`slider.${name}`);
      if (moving(name)) continue;
      const at = Number(one.input.value);
      if (one.stops[at] !== answer[name]) one.input.value = String(nearest(one.stops, answer[name]));
      say(name, answer[name]);
    }
  }

  function draw(answer, moving = () => false) {
    if (!sliders.context) {
      slider("context", K3.facts.contexts);
      slider("concurrency", K3.facts.concurrencies);
    }
    K3.once("verdict", [answer.verdict, answer.gpus, answer.nodes, answer.memory], () => verdict(answer));
    fill($("memory"), answer.memory.map((one) => bar(one, answer.memory.length > 1)));
    slide(answer, moving);
    K3.once("limits", [answer.memory, answer.unknown, answer.context, answer.concurrency, answer.selection], () => limits(answer));
    K3.once("items", answer.memory, () => items(answer));
  }

  return { draw, foretold, onSlide: (run) => (slid = run), onChange: (run) => (change = run), onAttempt: (run) => (attempt = run) };
})();
