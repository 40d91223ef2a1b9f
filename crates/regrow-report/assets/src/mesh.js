// How arrays lie on devices: the mesh as a grid, and in each cell the part of an array that the device holds.

import { el, fill } from "./dom.js";
import { bytes, counted, integer, printable, shorten } from "./text.js";

const PARTS_TINTED = 8;

/** `0:16, :` of a part: the whole of an axis is a colon. */
function region(part, shape) {
  return part.start.map((start, axis) => {
    const [end, length] = [part.end[axis], shape[axis]];
    return start === 0 && end === length ? ":" : `${start}:${end}`;
  });
}

const regionText = (part, shape) => (shape.length ? `[${region(part, shape).join(", ")}]` : "all");

/** One way in which arrays lie on devices. */
function shardingBlock(use, path) {
  const block = el(
    "article",
    { class: "sharding" },
    el("h3", {}, el("bdi", { text: shorten(printable(use.words), 200) })),
    el("p", { class: "quiet", text: `${counted(use.leaf_count, "leaf", "leaves")}, ${bytes(use.bytes)}` }),
  );
  const { example } = use;
  if (!example) {
    block.append(el("p", { class: "quiet", text: "It cannot be laid out over a mesh from what is recorded." }));
    return block;
  }
  const regions = new Map();
  for (const part of example.parts) {
    const text = regionText(part, example.shape);
    if (!regions.has(text)) regions.set(text, regions.size);
  }
  block.append(
    el("p", {}, "Example: ", path(example.leaf), ` of shape [${example.shape.join(", ")}], ${parts(example)}`),
    meshTable(use, example, regions),
  );
  if (example.parts.length < example.device_count) {
    const shown = `The first ${integer(example.parts.length)} of ${integer(example.device_count)} devices are shown.`;
    block.append(el("p", { class: "quiet", text: shown }));
  }
  return block;
}

function parts({ part_shape, replica_count, device_count }) {
  const each = `in parts of [${part_shape.join(", ")}] on ${counted(device_count, "device", "devices")}`;
  return replica_count > 1 ? `${each}; ${integer(replica_count)} devices hold each part.` : `${each}; each holds its own.`;
}

/** The last two axes of the mesh make rows and columns, the others a table each. */
function meshTable({ mesh }, example, regions) {
  const axes = mesh.length ? mesh : [["device", example.device_count]];
  const columns = axes[axes.length - 1];
  const rows = axes.length > 1 ? axes[axes.length - 2] : undefined;
  const name = ([axis]) => printable(axis);
  const groups = new Map();
  for (const part of example.parts) {
    const outer = part.coordinates.slice(0, -2);
    const title = outer.map((at, axis) => `${name(axes[axis])} = ${at}`).join(", ");
    if (!groups.has(title)) groups.set(title, []);
    groups.get(title).push(part);
  }
  const box = el("div", { class: "meshes" });
  for (const [title, group] of groups) {
    const table = el("table", { class: "mesh" });
    const caption = title || (rows ? `${name(rows)} down, ${name(columns)} across` : `${name(columns)} across`);
    table.append(el("caption", { text: caption }));
    const across = [...new Set(group.map((part) => part.coordinates.at(-1)))];
    table.append(
      el("thead", {}, el("tr", {}, el("td"), ...across.map((at) => el("th", { scope: "col", text: `${name(columns)} ${at}` })))),
    );
    const byRow = Map.groupBy
      ? Map.groupBy(group, (part) => part.coordinates.at(-2) ?? 0)
      : group.reduce((map, part) => map.set(part.coordinates.at(-2) ?? 0, [...(map.get(part.coordinates.at(-2) ?? 0) ?? []), part]), new Map());
    const body = el("tbody");
    for (const [at, line] of byRow) {
      const head = el("th", { scope: "row", text: rows ? `${name(rows)} ${at}` : "" });
      body.append(el("tr", {}, head, ...line.map((part) => deviceCell(part, example, regions))));
    }
    table.append(body);
    box.append(el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": `Mesh, ${caption}` }, table));
  }
  return box;
}

function deviceCell(part, example, regions) {
  const text = regionText(part, example.shape);
  const tint = regions.size > 1 ? `tint-${(regions.get(text) % PARTS_TINTED) + 1}` : "tint-0";
  return el(
    "td",
    { class: `device ${tint}` },
    el("span", { class: "id", text: `device ${part.device}` }),
    el("span", { class: "region", text }),
    example.replica_count > 1 ? el("span", { class: "copy", text: `copy ${part.replica + 1}` }) : undefined,
  );
}

export function showShardings(host, uses, path) {
  fill(host, ...uses.map((use) => shardingBlock(use, path)));
}
