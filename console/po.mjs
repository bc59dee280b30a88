// SPDX-License-Identifier: Apache-2.0
//
// Translations. node po.mjs lists what po/*.po lack or have too much, and fails if there is any of it.

import { readFileSync, readdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));

const quoted = (s) => JSON.parse(s);

/** read reads a .po file: entries with id, plural, and texts; the first one, with an empty id, is the head. */
export function read(text) {
    const entries = [];
    let entry = null, at = null;
    for (const line of text.split("\n")) {
        let m;
        if ((m = line.match(/^msgid (".*")$/))) {
            entry = { id: quoted(m[1]), plural: null, texts: [] };
            entries.push(entry);
            at = (s) => entry.id += s;
        } else if ((m = line.match(/^msgid_plural (".*")$/))) {
            entry.plural = quoted(m[1]);
            at = (s) => entry.plural += s;
        } else if ((m = line.match(/^msgstr(?:\[(\d)\])? (".*")$/))) {
            const i = Number(m[1] ?? 0);
            entry.texts[i] = quoted(m[2]);
            at = (s) => entry.texts[i] += s;
        } else if ((m = line.match(/^(".*")$/)) && at) {
            at(quoted(m[1]));
        } else if (line !== "" && !line.startsWith("#")) {
            throw new Error(`not a line of a .po file: ${line}`);
        }
    }
    return entries;
}

/** script is what Cockpit loads for a language. */
export function script(call, language, entries) {
    const forms = entries.find((e) => e.id === "")?.texts[0].match(/plural=([^;\n]+)/)?.[1] ?? "n != 1";
    const texts = entries.filter((e) => e.id !== "").map((e) => `${JSON.stringify(e.id)}:[${JSON.stringify(e.plural)},${e.texts.map((t) => JSON.stringify(t)).join(",")}]`);
    return `${call}({"":{"plural-forms":(n)=>${forms},"language":${JSON.stringify(language)},"language-direction":"ltr"},\n${texts.join(",\n")}\n});\n`;
}

/** used are the texts in the sources that are to be translated. */
export function used() {
    const found = new Map();
    for (const file of readdirSync(join(here, "src")).filter((f) => f.endsWith(".js"))) {
        const text = readFileSync(join(here, "src", file), "utf8");
        for (const m of text.matchAll(/(?<![\w.])_\(("(?:[^"\\]|\\.)*")\)/g))
            found.set(quoted(m[1]), null);
        for (const m of text.matchAll(/(?<![\w.])plural\(("(?:[^"\\]|\\.)*"),\s*("(?:[^"\\]|\\.)*")/g))
            found.set(quoted(m[1]), quoted(m[2]));
        for (const m of text.matchAll(/(?<![\w.])_\((?!")(.{0,30})/g))
            throw new Error(`${file}: _() takes a text, not ${m[1]}`);
    }
    for (const page of Object.values(JSON.parse(readFileSync(join(here, "manifest.json"), "utf8")).menu))
        found.set(page.label, null);
    return found;
}

/** places are the values that a text has places for. */
const places = (text) => [...text.matchAll(/\$\d/g)].map((m) => m[0]).sort().join();

function check() {
    const faults = [], texts = used();
    for (const file of readdirSync(join(here, "po"))) {
        const entries = read(readFileSync(join(here, "po", file), "utf8")), known = new Map(entries.map((e) => [e.id, e]));
        for (const [id, plural] of texts) {
            const e = known.get(id);
            if (!e || e.texts.length < (plural ? 2 : 1) || e.texts.some((t) => !t) || e.plural !== plural)
                faults.push(`${file} lacks ${JSON.stringify(id)}`);
            else if (e.texts.some((t) => places(t) !== places(id)))
                faults.push(`${file}: ${JSON.stringify(id)} has other places`);
        }
        for (const e of entries)
            if (e.id !== "" && !texts.has(e.id))
                faults.push(`${file} has ${JSON.stringify(e.id)}, which nothing says`);
    }
    return faults;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
    const faults = check();
    if (process.argv[2] === "missing")
        console.log([...used()].map(([id, plural]) => `msgid ${JSON.stringify(id)}\n${plural ? `msgid_plural ${JSON.stringify(plural)}\nmsgstr[0] ""\nmsgstr[1] ""` : 'msgstr ""'}\n`).join("\n"));
    else
        faults.forEach((f) => console.error(f));
    process.exit(faults.length ? 1 : 0);
}
