// A link's words, and back. Nothing in a link is trusted: it is taken apart into known fields, and what the rules do not
// allow is gone through row by row, as if somebody clicked.
"use strict";
K3.link = (() => {
  const { t } = K3;
  const KNOWN = ["engine", "version", "hardware", "scheme", "goal", "serving", "layout", "prefill", "features", "parsers", "kv", "prefix", "utilization", "prefill_utilization", "state_ratio", "batched_tokens", "model"];
  const FORMS = ["docker", "shell", "compose", "kubernetes", "slurm", "skypilot"];
  const LONGEST = 2000;
  const short = (text) => (text.length > 40 ? `${text.slice(0, 40)}…` : text);

  const write = (state) => `#${state.selection}&context=${state.context}&concurrency=${state.concurrency}&form=${state.form}`;

  /** The fields of a link, and sentences about what was left out. */
  function read(hash) {
    const said = [];
    if (hash.length > LONGEST) return { fields: new Map(), said: [t("link.long", { most: LONGEST })] };
    const fields = new Map();
    for (const [name, value] of new URLSearchParams(hash.replace(/^#/, ""))) {
      if (KNOWN.includes(name)) fields.set(name, value);
      else if (name === "form") FORMS.includes(value) ? fields.set(name, value) : said.push(t("link.value", { name, value: short(value) }));
      else if (name === "context" || name === "concurrency") count(name, value, fields, said);
      else said.push(t("link.unknown", { name: short(name) }));
    }
    return { fields, said };
  }

  function count(name, value, fields, said) {
    const most = name === "context" ? K3.facts.contexts.at(-1) : 100000;
    const number = /^\d{1,9}$/.test(value) ? Number(value) : 0;
    if (number >= 1 && number <= most) fields.set(name, number);
    else said.push(t("link.number", { name: t(`slider.${name}`), value: short(value), most: K3.number(most) }));
  }

  /** The selection as a query in the order that answers use. */
  function selection(fields) {
    const order = ["engine", "version", "hardware", "scheme", "goal", "serving", "layout", "prefill", "features", "parsers", "batched_tokens", "kv", "prefix", "utilization", "prefill_utilization", "state_ratio", "model"];
    return new URLSearchParams(order.filter((name) => fields.has(name)).map((name) => [name, fields.get(name)])).toString();
  }

  /** Whether a change that would fit can be taken here: a site of files holds no other shares of memory. */
  const reaches = (way) => K3.facts.served || (way.utilization === null && way.batched_tokens === null);

  /** The state with a change of one role's layout and of the workload; sliders of a site stop at or below it. */
  function changed(state, role, way) {
    const fields = new Map(new URLSearchParams(state.selection));
    if (way.layout !== null) fields.set(role === "prefill" ? "prefill" : "layout", way.layout);
    for (const name of ["utilization", "batched_tokens"]) if (way[name] !== null) fields.set(name, String(way[name]));
    const below = (stops, value) => (K3.facts.served ? value : stops.filter((stop) => stop <= value).at(-1) || stops[0]);
    return {
      ...state,
      selection: selection(fields),
      context: below(K3.facts.contexts, way.context ?? state.context),
      concurrency: below(K3.facts.concurrencies, way.concurrency ?? state.concurrency),
    };
  }

  /** What a link wants in each row. */
  function wanted(fields) {
    const rows = {};
    for (const name of ["hardware", "engine", "version", "scheme", "goal", "serving", "parsers", "kv"]) if (fields.has(name)) rows[name] = fields.get(name);
    if (fields.has("layout")) rows.layout = fields.has("prefill") ? `${fields.get("prefill")};${fields.get("layout")}` : fields.get("layout");
    if (fields.has("features")) {
      const features = fields.get("features").split(",");
      rows.speculation = ["dspark", "dflash"].find((name) => features.includes(name)) || "none";
      rows.input = features.includes("text-only") ? "text-only" : "images";
      rows.hicache = features.includes("hicache") ? "on" : "off";
    }
    if (fields.has("prefix")) rows.prefix = fields.get("prefix") === "1" ? "on" : "off";
    return rows;
  }

  const optionOf = (answer, dimension, value) => {
    const row = answer.rows.find((one) => one.dimension === dimension);
    return row && row.options.find((option) => option.value === value);
  };

  /** From the beginning, take the link's value in every row that allows it; say which did not. */
  async function replay(fields, ask, state) {
    const rows = wanted(fields);
    let answer = await ask(state);
    const refusals = {};
    for (const dimension of K3.facts.dimensions) {
      if (!(dimension in rows)) continue;
      const option = optionOf(answer, dimension, rows[dimension]);
      if (option && option.to && !option.chosen) {
        state.selection = option.to;
        answer = await ask(state);
      } else if (option && option.refused) refusals[dimension] = option.refused;
    }
    const said = [];
    for (const dimension of K3.facts.dimensions) {
      if (!(dimension in rows)) continue;
      const chosen = answer.rows.find((one) => one.dimension === dimension).options.find((option) => option.chosen);
      if (chosen.value === rows[dimension]) continue;
      const values = { row: t(`row.${dimension}`), asked: short(rows[dimension]), got: K3.rows.words(dimension, chosen) };
      const why = refusals[dimension];
      said.push(why ? t("link.refused", { ...values, why: `${K3.said(why.why)}${K3.gap()}${K3.said(why.fix)}` }) : t("link.changed", values));
    }
    return { answer, said };
  }

  return { write, read, selection, replay, reaches, changed };
})();
