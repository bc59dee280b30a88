// SPDX-License-Identifier: Apache-2.0
//
// Builds the package for Cockpit: node build.mjs DIRECTORY. The same sources make the same bytes.

import { mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { read, script } from "./po.mjs";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2];
if (!out) {
    console.error("usage: build.mjs DIRECTORY");
    process.exit(2);
}
mkdirSync(out, { recursive: true });

const result = await build({
    absWorkingDir: here, entryPoints: { boxd: "src/main.js" }, outdir: out, bundle: true, minify: true, format: "iife", target: ["es2022"],
    external: ["../../static/fonts/*"], legalComments: "none", metafile: true, logLevel: "warning",
});
for (const file of ["index.html", "manifest.json"])
    writeFileSync(join(out, file), readFileSync(join(here, file))); // not its mode

// The texts: one for the page and one for what the manifest says, in each language.
for (const file of readdirSync(join(here, "po")).filter((f) => f.endsWith(".po"))) {
    const language = file.slice(0, -3), po = read(readFileSync(join(here, "po", file), "utf8"));
    writeFileSync(join(out, `po.${language}.js`), script("cockpit.locale", language, po));
    writeFileSync(join(out, `po.manifest.${language}.js`), script("(window.cockpit && cockpit.locale || function () {})", language, po.filter((e) => e.id === "Boxes")));
}

// What is bundled has its licence beside it.
const packages = new Set(Object.keys(result.metafile.inputs).map((f) => f.match(/node_modules\/((?:@[^/]+\/)?[^/]+)\//)?.[1]).filter(Boolean));
const texts = [...packages].sort().map((name) => {
    const dir = join(here, "node_modules", name), about = JSON.parse(readFileSync(join(dir, "package.json"), "utf8"));
    return `== ${name} ${about.version}, ${about.license}\n\n${readFileSync(join(dir, "LICENSE"), "utf8").trim()}\n`;
});
writeFileSync(join(out, "third-party.txt"), texts.join("\n"));
