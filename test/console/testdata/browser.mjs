// SPDX-License-Identifier: Apache-2.0
//
// A browser that has opened the console, for the scripts beside this one.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { join } from "node:path";

const { chromium } = createRequire(join(process.env.CONSOLE_MODULES, "x"))("playwright-core");

const flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--force-color-profile=srgb"];

// How long anything may take, in milliseconds: it decides no test, since what is waited for either comes or has failed. Who seeks a fault
// waits less.
export const patience = Number(process.env.CONSOLE_PATIENCE ?? 300000);

const answers = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

/** host has the test do something on the host. */
export async function host(name, argument = "") {
    console.log(`HOST ${name} ${argument}`);
    return JSON.parse((await answers.next()).value);
}

/** open starts the browser. options are those of a context: colorScheme, locale, viewport. */
export async function open(options = {}) {
    const context = await chromium.launchPersistentContext(join(process.env.CONSOLE_DIR, "profile"), {
        executablePath: process.env.CONSOLE_BROWSER, args: flags, headless: true, timeout: patience, viewport: { width: 1280, height: 800 }, ...options,
    });
    context.setDefaultTimeout(patience);
    const page = context.pages()[0] ?? await context.newPage();
    page.faults = [];
    page.on("pageerror", (err) => page.faults.push(String(err.stack ?? err)));
    page.on("console", (m) => m.type() === "error" && page.faults.push(m.text()));
    return page;
}

let failed = 0;

/** step does something and tells how it went. */
export async function step(name, act) {
    try {
        await act();
        console.log("ok " + name);
    } catch (err) {
        failed++;
        console.log("FAILED " + name + "\n" + (err.stack ?? err));
    }
}

/** is holds a value to another. */
export function is(got, want, what = "") {
    if (JSON.stringify(got) !== JSON.stringify(want))
        throw new Error(`${what}: got ${JSON.stringify(got)}, want ${JSON.stringify(want)}`);
}

/** has holds a text to having a part. */
export function has(text, part) {
    if (!String(text).includes(part))
        throw new Error(`${JSON.stringify(String(text).slice(0, 2000))} has no ${JSON.stringify(part)}`);
}

/** until waits for something to be so. what says it, with what is there instead. */
export async function until(what, so) {
    for (const end = Date.now() + patience; ;) {
        const [ok, seen] = await so();
        if (ok)
            return;
        if (Date.now() > end)
            throw new Error(`${what}: ${JSON.stringify(seen)}`);
        await new Promise((again) => setTimeout(again, 200));
    }
}

/** close ends the browser, and the script. */
export async function close(page) {
    await page.context().close();
    process.exit(failed ? 1 : 0);
}

/** healthy is the last step: nothing in the page has failed that no step was about. */
export async function healthy(page) {
    await step("nothing in the page has failed", async () => {
        if (page.faults.length)
            throw new Error(page.faults.join("\n"));
    });
}
