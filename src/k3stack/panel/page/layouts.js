// Layouts in words: what their letters do, and how many GPUs and nodes they take.
"use strict";
K3.layouts = (() => {
  const { t } = K3;

  /** "tp8,pp1,dp2,dcp8,ep" taken apart. */
  function sizes(word) {
    const found = { tp: 1, pp: 1, dp: 1, dcp: 1, ep: false };
    for (const part of word.split(",")) {
      const [, name, size] = /^([a-z]+)(\d*)$/.exec(part) || [];
      if (name in found) found[name] = size === "" ? true : Number(size);
    }
    return found;
  }

  const each = (value) =>
    value.split(";").map((word) => {
      const { tp, pp, dp } = sizes(word);
      return tp * pp * dp;
    });

  /** GPUs of all roles together. */
  const gpus = (value) => each(value).reduce((sum, count) => sum + count, 0);

  /** "TP8 x DP2 + EP + DCP8", as `k3 plan` writes it. */
  function describe(word) {
    const one = sizes(word);
    const cut = [`TP${one.tp}`, ...["pp", "dp"].filter((name) => one[name] > 1).map((name) => name.toUpperCase() + one[name])];
    return [cut.join(" x "), ...(one.ep ? ["EP"] : []), ...(one.dcp > 1 ? [`DCP${one.dcp}`] : [])].join(" + ");
  }

  /** A value of the layout row: one layout, or that of prefill and that of decode. */
  const name = (value) => value.split(";").map(describe).join(" → ");

  /** What each part of a layout does, in a sentence. */
  function sentences(word) {
    const one = sizes(word);
    const said = ["tp", "pp", "dp", "dcp"].filter((part) => one[part] > 1).map((part) => t(`layout.${part}`, { n: one[part] }));
    if (one.ep) said.push(t("layout.ep"));
    return said.join(K3.gap());
  }

  const explained = (value) => {
    const words = value.split(";");
    const roles = words.length > 1 ? ["prefill", "decode"] : [];
    return words.map((word, at) => (roles.length ? t("layout.role", { role: t(`role.${roles[at]}`), what: sentences(word) }) : sentences(word)));
  };

  /** "16 GPUs, 2 nodes": what a group of layouts takes. */
  function place(value, hardware) {
    const counts = each(value);
    const nodes = counts.reduce((sum, count) => sum + Math.ceil(count / K3.facts.per_node[hardware]), 0);
    const split = counts.length > 1 ? t("layout.split", { prefill: counts[0], decode: counts[1] }) : "";
    return `${t("gpus", { count: gpus(value) })}${t("comma")}${t(nodes === 1 ? "node" : "nodes", { count: nodes })}${split}`;
  }

  return { name, explained, place, gpus };
})();
