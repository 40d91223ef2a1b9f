// Builds page.js and page.css from src/, and THIRD-PARTY.txt from the packages that went in.
//
// `node build.mjs`; `make report-assets` in the repository's root does it with the packages of package-lock.json.

import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const options = {
  bundle: true,
  minify: true,
  charset: "utf8",
  legalComments: "none", // they are in THIRD-PARTY.txt
  target: ["chrome103", "firefox113", "safari16.4"],
  metafile: true,
  define: { "process.env.NODE_ENV": '"production"' },
};

const { metafile } = await build({ ...options, entryPoints: ["src/main.js"], format: "iife", outfile: "page.js" });
await build({ ...options, entryPoints: ["src/page.css"], outfile: "page.css" });

// A script ends at the first of these, whatever language it is in.
const bundle = readFileSync("page.js", "utf8");
if (/<\/script|<!--/i.test(bundle)) throw new Error("page.js has a text that ends a script element");

const packages = new Set();
for (const [path, { bytesInOutput }] of Object.entries(metafile.outputs["page.js"].inputs)) {
  const found = /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path);
  if (found && bytesInOutput > 0) packages.add(found[1]);
}
const isText = (entry) => entry.isFile() && (/^(licen[cs]e|notice|copyright)/i.test(entry.name) || entry.parentPath?.endsWith("/licenses"));
const licences = [...packages].sort().map((name) => {
  const folder = `node_modules/${name}`;
  const { version, license } = JSON.parse(readFileSync(`${folder}/package.json`, "utf8"));
  const files = readdirSync(folder, { withFileTypes: true, recursive: true }).filter(isText);
  const said = files.map((file) => readFileSync(`${file.parentPath}/${file.name}`, "utf8").trim()).sort();
  const holder = said.flatMap((text) => text.split("\n")).find((line) => /^\s*copyright (\(c\)|\d)/i.test(line)) ?? "";
  return { title: `${name} ${version} (${license})`, holder: holder.trim(), said };
});
const line = `\n\n${"-".repeat(80)}\n\n`;
const texts = licences.map(({ title, said }) => [title, ...said].join("\n\n"));
writeFileSync("THIRD-PARTY.txt", `The script of the page, page.js, contains these packages.${line}${texts.join(line)}\n`);

// Every page is a copy of them, so it names them.
const named = licences.map(({ title, holder }) => ` * ${title}: ${holder}`).join("\n");
const script = `/*!\n * regrow report contains these packages; their licences are in THIRD-PARTY.txt of regrow-report.\n${named}\n */\n${bundle}`;
writeFileSync("page.js", script);

// What the built files were made from: the tests compare it without node.
const sources = ["package-lock.json", "build.mjs", ...readdirSync("src").sort().map((name) => `src/${name}`)];
const digest = (path) => createHash("sha256").update(readFileSync(path)).digest("hex");
const built = ["page.js", "page.css", "THIRD-PARTY.txt"];
writeFileSync("built-from.txt", [...sources, ...built].map((path) => `${digest(path)}  ${path}\n`).join(""));
console.log(`page.js ${script.length} bytes, page.css ${readFileSync("page.css").length} bytes`);
