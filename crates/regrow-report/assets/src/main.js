// The page of `regrow report`: reads what is in it, and shows each section that has something to show.

import { Columns } from "./columns.js";
import { showComparison } from "./comparison.js";
import { byId, el } from "./dom.js";
import { Keys } from "./keys.js";
import { DAMAGED, LeafTable, keyPath } from "./leaves.js";
import { showShardings } from "./mesh.js";
import { shares, showShares } from "./shares.js";
import { showSteps } from "./steps.js";
import { startTheme } from "./theme.js";
import { Treemap } from "./treemap.js";

const WORDS = ["kind", "dtype", "shape", "coding", "chunk_shape", "checksum", "file"];
const NUMBERS = ["elements", "bytes", "chunk_count", "state", "sharding"];
const STATISTICS = ["count", "nan_count", "infinity_count", "zero_count", "min", "max", "mean", "standard_deviation", "l2_norm"];

async function readLeaves(columns) {
  const leaves = await columns.all("leaves", NUMBERS);
  for (const name of WORDS) {
    const { values, index } = await columns.all(`leaves.${name}`, ["values", "index"]);
    leaves[name] = { values, index, empty: values.indexOf("") };
  }
  return leaves;
}

async function showLeaves(report, columns) {
  const keys = new Keys(await columns.all("leaves", ["names", "name", "parent", "node"]));
  if (keys.node.length === 0) return;
  const leaves = await readLeaves(columns);
  const statistics = columns.has("statistics.count") ? await columns.all("statistics", STATISTICS) : undefined;
  const table = new LeafTable({ keys, leaves, statistics, columns, report });
  const isDamaged = leaves.state.map((state) => Number(state === DAMAGED));
  new Treemap({
    keys,
    sizes: keys.sums(leaves.bytes),
    counts: keys.sums(),
    marks: keys.sums(isDamaged),
    onLeaf: (row) => table.choose(row),
  });
  const titles = { dtype: "Bytes by dtype", coding: "Bytes by coding", file: "Bytes by file", checksum: "Bytes by what protects them" };
  for (const [column, title] of Object.entries(titles)) {
    showShares(byId(`shares-${column}`), title, shares(leaves[column], leaves.bytes, column === "checksum" ? "nothing" : "none"));
  }
  const link = (row) => el("button", { type: "button", class: "link", on: { click: () => table.choose(row) } }, keyPath(keys, keys.node[row]));
  if (report.shardings.length) showShardings(byId("shardings-list"), report.shardings, link);
  for (const button of document.querySelectorAll("button[data-leaf]")) {
    button.addEventListener("click", () => table.choose(Number(button.dataset.leaf)));
    button.disabled = false;
  }
}

async function start() {
  startTheme(byId("theme"));
  const report = JSON.parse(byId("report").textContent);
  const columns = new Columns(document);
  await showLeaves(report, columns);
  for (let position = 0; position < report.comparison_count; position += 1) await showComparison(position, columns);
  if (report.steps) showSteps(report.steps);
}

start()
  .then(() => {
    document.documentElement.dataset.state = "ready";
  })
  .catch((error) => {
    document.documentElement.dataset.state = "failed";
    byId("failure").hidden = false;
    byId("failure").textContent = `The page could not be built: ${error.message}. A newer browser may help.`;
    throw error;
  });
