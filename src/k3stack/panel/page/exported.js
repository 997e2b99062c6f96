// Answers from the files of an exported site: unpacked, never computed. How they are packed: k3stack's panel/shard.py.
"use strict";
(() => {
  const shards = {};
  const loading = {};

  /** A file of answers: `pooled` lines of values that others point to by number, then a line for each state. A line is read when it is needed. */
  K3.shard = (name, pooled, text) => {
    const lines = text.split("\n");
    const values = [];
    const pool = (number) => (values[number] === undefined ? (values[number] = JSON.parse(lines[number])) : values[number]);
    const states = lines.slice(pooled).map((line) => JSON.parse(line));
    shards[name] = { pool, states: new Map(states.map((state) => [pool(state[0]), state])) };
  };

  function load(name) {
    if (shards[name]) return Promise.resolve(shards[name]);
    if (!K3.facts.shards.includes(name)) return Promise.reject(missing());
    loading[name] = loading[name] || new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = `data/${name}.js`;
      script.onload = () => resolve(shards[name]);
      script.onerror = () => {
        delete loading[name];
        reject(Object.assign(new Error(`data/${name}.js`), { gone: true }));
      };
      document.head.append(script);
    });
    return loading[name];
  }

  const missing = () => Object.assign(new Error(K3.t("export.missing", { covers: K3.facts.covers.join(", ") })), { missing: true });

  /** One cell of a compact grid; a number stands for a part in the pool. */
  function cell(part, row, column, pool) {
    let packed = part;
    while (typeof packed === "number") packed = pool(packed);
    const kind = Object.keys(packed)[0];
    const held = packed[kind];
    const of = (value) => cell(value, row, column, pool);
    if (kind === "k") return held;
    if (kind === "c") return held[row];
    if (kind === "n") return held[column];
    if (kind === "s") return held[0][row] + held[1][column];
    if (kind === "o") return Object.fromEntries(Object.entries(held).map(([name, value]) => [name, of(value)]));
    if (kind === "l") return held.map(of);
    if (kind === "w") return held.map(of).join(" ");
    if (kind === "v") return of(held[1][of(held[0])]);
    return held[0][held[1][row][column]];
  }

  const nearest = (stops, value) => stops.reduce((best, stop, at) => (Math.abs(stop - value) < Math.abs(stops[best] - value) ? at : best), 0);

  function unpack(shard, state, asked) {
    const { pool } = shard;
    const [selection, rows, grid, figures, texts] = state;
    const row = nearest(K3.facts.contexts, asked.context);
    const column = nearest(K3.facts.concurrencies, asked.concurrency);
    const { fits, ratio, ...planned } = cell(grid, row, column, pool);
    const [written_as, command] = pool(texts[(K3.facts.contexts[row] > K3.facts.long ? "l" : "s") + (ratio === null ? "" : "r")]);
    const text = pool(written_as);
    const holes = pool(text.holes).map(([axis, values]) => (axis === "r" ? ratio : values[axis === "c" ? row : column]));
    const fill = (words) => words.replace(/[\uE000-\uE0FF]/g, (character) => String(holes[character.charCodeAt(0) - 0xe000]));
    return {
      ...JSON.parse(fill(JSON.stringify(pool(text.rest)))),
      ...planned,
      selection: pool(selection),
      context: K3.facts.contexts[row],
      concurrency: K3.facts.concurrencies[column],
      rows: rows.map((number) => rowOf(pool, pool(number))),
      figures: pool(figures),
      forms: pool(text.forms),
      command: fill(pool(command)) + asked.form,
      written: fits ? written(pool, text.written[asked.form], pool(text.forms).find((one) => one.form === asked.form), fill) : null,
    };
  }

  function rowOf(pool, [dimension, options]) {
    return {
      dimension,
      options: options.map(([shown, chosen, to, moves, refused]) => {
        const [value, label, note] = pool(shown);
        return { value, label, note, chosen: chosen === 1, to: to < 0 ? "" : pool(to), moves: moves < 0 ? [] : pool(moves), refused: refused < 0 ? null : pool(refused) };
      }),
    };
  }

  function written(pool, packed, form, fill) {
    if (typeof packed === "string") return { form: form.form, file: form.file, lines: [], reasons: [], refused: packed };
    const numbers = new Map();
    const reason = (number) => {
      if (number < 0) return -1;
      if (!numbers.has(number)) numbers.set(number, numbers.size);
      return numbers.get(number);
    };
    const lines = packed.flatMap((piece) => pool(piece)).map((line) => pool(line).map(([words, number]) => [fill(words), reason(number)]));
    return { form: form.form, file: form.file, lines, reasons: [...numbers.keys()].map((number) => pool(number)), refused: "" };
  }

  async function ask(asked) {
    const fields = new URLSearchParams(asked.selection);
    const shard = await load(`${fields.get("hardware")}-${fields.get("engine")}-${fields.get("version")}`);
    const state = shard.states.get(asked.selection);
    if (!state) throw missing();
    return unpack(shard, state, asked);
  }

  const served = () => Promise.reject(new Error(K3.t("check.exported")));
  K3.source_of = { ask, check: served, machine: served };
})();
