// SPDX-License-Identifier: Apache-2.0

import { open, step, host, has, is, until, close, healthy } from "./browser.mjs";

const page = await open();
const box = process.env.CONSOLE_URL + "#/box/uid%3A0/work";
const go = (view) => page.goto(box + "/" + view);
await page.goto(box);

await step("what the box is, and what this host does not count", async () => {
    await page.getByRole("heading", { name: "work", level: 1 }).waitFor();
    await page.getByText("This host does not count what boxes use").or(page.getByRole("meter", { name: "Memory" })).first().waitFor();
    has(await page.locator("main").innerText(), "default");
});

await step("looking at a box does not renew its idle time", async () => {
    const before = await host("used", "work");
    await page.waitForTimeout(300);
    is(await host("used", "work"), before);
});

await step("a process is started, and its output followed", async () => {
    await go("processes");
    await page.getByRole("button", { name: "Start a process" }).click();
    await page.getByLabel("Name").fill("steps");
    await page.getByLabel("Command").fill("for i in 1 2 3; do echo step $i; sleep .2; done");
    await page.getByRole("dialog").getByRole("button", { name: "Start" }).click();
    const log = page.getByRole("log", { name: "Output of steps" });
    await log.getByText("step 3").waitFor();
    await log.getByText("[the end]").waitFor();
    await page.getByRole("row").filter({ hasText: "steps" }).getByText("exit code 0").waitFor();
});

await step("output is shown once and in order, however the log is looked at while it comes", async () => {
    await host("run", "many i=0; while [ $i -lt 400 ]; do echo line $i.; i=$((i+1)); [ $((i % 50)) != 0 ] || sleep .1; done; echo last >&2");
    await page.getByRole("button", { name: "Show the output of many" }).click();
    const log = page.getByRole("log", { name: "Output of many" });
    await log.getByText("line 0.", { exact: false }).first().waitFor();
    for (let i = 0; i < 6; i++)
        await page.getByLabel("Times").click();
    await log.getByText("[the end]").waitFor();
    const text = await log.innerText();
    is(text.match(/line \d+\./g).join(" "), Array.from({ length: 400 }, (_v, i) => `line ${i}.`).join(" "), "lines");
    is(text.split("last").length, 2, "of the other stream");
    is(text.trimEnd().split("\n").at(-1), "[the end]", "the end");
    await page.getByLabel("Stream").selectOption("stderr");
    is((await log.innerText()).trimEnd(), "last\n[the end]", "one stream");
});

await step("escape sequences and broken UTF-8 are shown as text, with a note", async () => {
    await host("start", String.raw`work printf '\033[31mred\033[0m \033]0;title\007<b>bold</b> \377\376 gr\303\274n \000 bell\007\n'; echo warned >&2; until [ -e /tmp/go ]; do sleep .1; done; echo resumed; sleep 600`);
    await page.getByRole("button", { name: "Show the output of web" }).click();
    const log = page.getByRole("log", { name: "Output of web" });
    await log.getByText("warned").waitFor();
    await until("the other stream, which may come later", async () => {
        const text = await log.innerText();
        return [text.includes("red <b>bold</b> \ufffd\ufffd grün \u2400 bell\u2407"), text];
    });
    await page.getByText("Sequences for terminals are left out. Bytes that are not UTF-8 are shown as \ufffd.").waitFor();
    is(await log.locator("b").count(), 0, "elements of the output");
});

await step("output continues after boxd was killed", async () => {
    await host("kill");
    await host("restart");
    await host("sh", "work touch /tmp/go");
    const log = page.getByRole("log", { name: "Output of web" });
    await log.getByText("resumed").waitFor();
    is((await log.innerText()).split("warned").length, 2, "output twice");
});

await step("files are listed, made, changed and removed", async () => {
    await host("sh", "work echo begun > notes.txt; mkdir -p 'a dir'; head -c 3000 /dev/urandom > blob; echo deep > 'a dir/deep'");
    await go("files");
    await page.getByRole("button", { name: "notes.txt", exact: true }).click();
    const text = page.getByLabel("Content of /workspace/notes.txt");
    await text.fill("begun and changed – ü\n");
    await page.getByRole("button", { name: "Save" }).click();
    await page.getByText("Saved,").waitFor();
    is(await host("sh", "work cat notes.txt"), "begun and changed – ü\n");
    await page.getByRole("button", { name: "a dir/" }).click();
    await page.getByRole("button", { name: "deep", exact: true }).waitFor();
    await page.getByRole("navigation", { name: "Directory" }).getByRole("button", { name: "workspace" }).click();
    await page.getByRole("row").filter({ hasText: "a dir" }).getByRole("button", { name: "Delete" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
    await page.getByRole("button", { name: "a dir/" }).waitFor({ state: "detached" });
    has(await host("sh", "work ls -A"), "notes.txt");
});

await step("a file that changes meanwhile is not overwritten", async () => {
    await page.getByRole("button", { name: "notes.txt", exact: true }).click();
    await page.getByLabel("Content of /workspace/notes.txt").fill("mine");
    await host("sh", "work echo theirs > notes.txt");
    await page.getByRole("button", { name: "Save" }).click();
    await page.locator("[data-state=conflict]").waitFor();
    is(await host("sh", "work cat notes.txt"), "theirs\n");
});

await step("a file that is no text is not shown, and can be downloaded", async () => {
    await page.getByRole("button", { name: "blob", exact: true }).click();
    await page.locator("[data-state=binary]").waitFor();
    const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("row").filter({ hasText: "blob" }).getByRole("button", { name: "Download" }).click()]);
    is(download.suggestedFilename(), "blob");
});

await step("limits are changed while it runs, and an invalid one is marked at its field", async () => {
    await go("limits");
    await page.getByLabel("Ends after idle time").fill("2h");
    await page.getByRole("button", { name: "Change" }).click();
    await page.getByText("The limits hold now.").waitFor();
    is(await host("limits", "work"), "2h");
    await page.getByLabel("Memory").fill("much");
    await page.getByRole("button", { name: "Change" }).click();
    await page.getByText("must be a size").waitFor();
    is(await page.getByLabel("Memory").getAttribute("aria-invalid"), "true");
});

await step("mounts and network are shown", async () => {
    await go("mounts");
    await page.getByText("No directory of the host is in this box.").waitFor();
    await page.getByRole("button", { name: "Add a mount" }).click();
    await page.getByLabel("Directory of the host").fill(process.env.CONSOLE_SHARED);
    await page.getByLabel("Directory in the box").fill("/mnt/doc");
    await page.getByRole("dialog").getByRole("button", { name: "Add" }).click();
    await page.getByRole("row").filter({ hasText: "/mnt/doc" }).waitFor();
    await go("network");
    await page.getByText("This box has no network.").waitFor();
});

await step("a refusal is shown beside its form and in the list", async () => {
    await go("mounts");
    await page.getByRole("button", { name: "Add a mount" }).click();
    await page.getByLabel("Directory of the host").fill("/etc");
    await page.getByLabel("Directory in the box").fill("/mnt/etc");
    await page.getByRole("dialog").getByRole("button", { name: "Add" }).click();
    await page.getByRole("alert").getByText("must be outside system directories").waitFor();
    await page.keyboard.press("Escape");
    await go("network");
    await page.getByRole("row").filter({ hasText: "/etc" }).first().waitFor();
});

const term = () => page.locator(".xterm-rows");
const types = async (text) => {
    await page.locator(".xterm-helper-textarea").focus();
    await page.keyboard.type(text + "\n");
};
await step("a terminal has the size that is seen, UTF-8, and text that can be seen", async () => {
    await go("terminal");
    await term().getByText("$").first().waitFor();
    await types("stty size; printf 'gr\\303\\274n %s\\n' $((6*7))");
    await term().getByText("grün 42").waitFor();
    const rows = await term().locator("> div").count();
    has(await term().innerText(), rows + " ");
    const style = await term().evaluate((e) => getComputedStyle(e).color);
    is(style !== "rgb(0, 0, 0)" && style !== "rgb(16, 18, 20)", true, "color " + style);
});

await step("a terminal continues after boxd was killed", async () => {
    await types("kept=still-here");
    await host("kill");
    await host("restart");
    await types("echo $kept");
    await term().getByText("still-here", { exact: true }).waitFor();
});

await step("the exit code of a shell is shown", async () => {
    await types("exit 7");
    await page.getByText("The shell has ended with exit code 7.").waitFor();
});

await step("a box is renewed, stopped and started", async () => {
    await page.goto(box);
    await page.getByRole("button", { name: "Renew" }).click();
    await page.getByText("Its idle time begins anew.").waitFor();
    await page.getByRole("button", { name: "Stop" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Stop" }).click();
    await page.getByRole("button", { name: "Start" }).click();
    await page.getByText("The box is started.").waitFor();
    is(await host("sh", "work cat notes.txt"), "theirs\n", "its files");
});

await step("a box that ends while it is looked at", async () => {
    await go("processes");
    await page.getByRole("heading", { name: "Processes" }).waitFor();
    await host("remove", "work");
    await page.locator("[data-state=gone]").waitFor();
    await page.getByText("This box has ended").waitFor();
});

await step("a box that is not there", async () => {
    await page.goto(process.env.CONSOLE_URL + "#/box/uid%3A0/never");
    await page.getByText("There is no such box. It may have ended.").waitFor();
});

await healthy(page);
await close(page);
