// Renders every Kimi-K3 command that vLLM's recipes page can show, with the page's own code.
//
//     node recipes_site.mjs CHECKOUT <DATA >COMMANDS
//
// CHECKOUT is a checkout of github.com/vllm-project/recipes; its src/lib/command-synthesis.js is imported unchanged.
// DATA is {recipe, strategies, taxonomy}: the checkout's YAML files as JSON. COMMANDS is a list of choices, each with
// {hardware, variant, strategy, nodes, pools, usual, features, roles: [{role, ranks: [words], environment: [variables]}]}.
//
// Which choices can be reached by clicking is decided as in src/components/recipes/CommandBuilder.jsx, with the same
// functions: which pills are there and not struck through, and how the count of nodes grows with a strategy.

import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const site = await import(pathToFileURL(path.resolve(process.argv[2], "src/lib/command-synthesis.js")));
const { recipe, strategies, taxonomy } = JSON.parse(fs.readFileSync(0, "utf8"));

function shown() {
  const declared = recipe.meta?.hardware || {};
  return Object.entries(taxonomy.hardware_profiles).filter(
    ([id, profile]) => (!profile.restricted || id in declared) && site.isHardwareSupported(recipe, id),
  );
}

function subsets(names) {
  return names.reduce((found, name) => [...found, ...found.map((one) => [...one, name])], [[]]);
}

function featuresOf(strategy) {
  const allowed = Object.entries(recipe.features).filter(([, one]) => site.isFeatureAllowedForStrategy(one, strategy));
  return subsets(allowed.map(([name]) => name));
}

// [strategy, nodes] of every pill of strategies at every pill of nodes; picking a strategy grows the nodes to its floor.
function layouts(id, profile, variant) {
  const perNode = profile.gpu_count || 8;
  const offered = site.effectiveCompatibleStrategies(recipe);
  const needed = Math.max(0, ...offered.map((name) => site.nodesForStrategy(recipe, name, perNode, id)));
  const pills = needed > 2 && needed <= site.MAX_NODES ? [1, 2, needed] : [1, 2];
  const found = new Map();
  for (const nodes of pills) {
    if (nodes > 1 ? !site.isHardwareScalable(profile) : !site.fitsSingleNode(profile, variant)) continue;
    for (const name of offered) {
      const kind = strategies[name]?.deploy_type;
      const here = nodes === 1 ? kind !== "multi_node" : kind !== "single_node";
      if (!kind || kind === "kv_store_lb" || !here) continue;
      if (!site.isStrategyReachable(recipe, name, kind, perNode, id)) continue;
      if (!site.isStrategySupportedOnHardware(recipe, name, profile, id)) continue;
      const grown = kind === "pd_cluster" ? 0 : Math.max(nodes, site.nodesForStrategy(recipe, name, perNode, id));
      found.set(`${name} ${grown}`, [name, grown]);
    }
  }
  return [...found.values()];
}

// Every pair of modes of the two pools, each pool with the nodes that the page gives it by itself.
function pools(id, profile, variant) {
  const perNode = profile.gpu_count || 8;
  const own = Math.max(1, Math.ceil((variant.vram_minimum_gb || 0) / profile.vram_gb) || 1);
  const modes = site.pdPoolModes(recipe).filter((mode) => site.isStrategyReachable(recipe, mode, "multi_node", perNode, id));
  const sized = modes.map((mode) => ({
    parallelism: mode,
    nodes: Math.max(own, site.nodesForStrategy(recipe, mode, perNode, id)),
  }));
  return sized.flatMap((prefill) => sized.map((decode) => ({ prefill, decode })));
}

// Whether the pools have the modes that the page gives them by itself.
function usual(pair) {
  const own = (role) =>
    recipe.strategy_overrides?.pd_cluster?.[role]?.parallelism || strategies.pd_cluster?.[role]?.parallelism || "tp";
  return !pair || ["prefill", "decode"].every((role) => pair[role].parallelism === own(role));
}

function resolved(choice, pools) {
  const { hardware, variant, strategy, nodes, features } = choice;
  return site.resolveCommand(
    recipe, variant, strategy, hardware, features, strategies, taxonomy, [], Math.max(1, nodes), pools, {}, null, {},
  );
}

// Nodes 0 and 1 of every role: the others differ in their number only.
function roles(choice) {
  if (choice.strategy !== "pd_cluster") {
    const said = resolved(choice, null);
    const words = said.headArgv ? [said.headArgv, said.workerArgv] : [said.argv];
    return [{ role: "server", ranks: words, environment: words.map(() => said.env) }];
  }
  return ["prefill", "decode"].map((role) => {
    const ranks = choice.pools[role].nodes > 1 ? [0, 1] : [0];
    const said = ranks.map((rank) => resolved(choice, { ...choice.pools, [role]: { ...choice.pools[role], rank } })[role]);
    return { role, ranks: said.map((one) => one.argv), environment: said.map((one) => one.env) };
  });
}

const found = [];
for (const [hardware, profile] of shown()) {
  for (const [variant, data] of Object.entries(recipe.variants)) {
    if (!site.variantRunsOnHardware(profile, data, hardware)) continue;
    for (const [strategy, nodes] of layouts(hardware, profile, data)) {
      const sized = strategy === "pd_cluster" ? pools(hardware, profile, data) : [null];
      for (const pair of sized) {
        for (const features of featuresOf(strategy)) {
          const choice = { hardware, variant, strategy, nodes, pools: pair, usual: usual(pair), features };
          found.push({ ...choice, roles: roles(choice) });
        }
      }
    }
  }
}
process.stdout.write(JSON.stringify(found));
