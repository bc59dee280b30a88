// SPDX-License-Identifier: Apache-2.0

import { open, step, host, has, is, close, healthy } from "./browser.mjs";

const page = await open();
const to = (place) => page.goto(process.env.CONSOLE_URL + "#/" + place);

await step("the doctor is a checklist with what to do", async () => {
    await to("host");
    await page.getByRole("listitem").filter({ hasText: "kernel" }).first().waitFor();
    has(await page.locator(".checks").innerText(), "test box");
    await page.getByText("PSI is off").or(page.getByRole("meter", { name: "CPUs" })).first().waitFor();
});

await step("what has failed is listed", async () => {
    await host("fail");
    await page.getByRole("cell", { name: "must be a size" }).waitFor();
});

await step("events come as they happen, and are filtered", async () => {
    await to("activity");
    await page.getByRole("cell", { name: "session.started" }).first().waitFor();
    await host("sh", "work true");
    await page.getByRole("row").filter({ hasText: "exec.ended" }).first().waitFor();
    await page.getByRole("combobox", { name: "Type" }).selectOption("session.started");
    await page.getByRole("row").filter({ hasText: "exec.ended" }).first().waitFor({ state: "detached" });
    await page.getByRole("cell", { name: "session.started" }).first().waitFor();
});

await step("the audit log is filtered by box", async () => {
    await to("activity/audit");
    await page.getByRole("searchbox", { name: "Box" }).fill("work");
    await page.getByRole("button", { name: "Show" }).click();
    await page.getByRole("cell", { name: "POST /v1/sessions/{id}/exec" }).first().waitFor();
});

await step("its chain is verified, and the head of it noted", async () => {
    await page.getByRole("button", { name: "Verify the chain" }).click();
    await page.locator("[data-state=chain-whole]").waitFor();
    await page.getByText("This browser notes its head").waitFor();
    await page.getByRole("button", { name: "Verify the chain" }).click();
    await page.getByText("It still has the record that this browser has noted earlier.").waitFor();
});

await step("a record that was changed is found", async () => {
    await host("break");
    await page.getByRole("button", { name: "Verify the chain" }).click();
    await page.locator("[data-state=chain-broken]").waitFor();
});

await step("a workspace is made and removed", async () => {
    await to("storage/workspaces");
    await page.getByRole("button", { name: "Create workspace" }).click();
    await page.getByLabel("Name").fill("shared");
    await page.getByRole("dialog").getByRole("button", { name: "Create" }).click();
    await page.getByRole("rowheader", { name: "shared" }).waitFor();
    await page.getByRole("button", { name: "Remove shared" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Remove" }).click();
    await page.getByText("There are no named workspaces.").waitFor();
});

await step("a skill and a drive are there with who uses them, and are removed", async () => {
    await host("skill", "greet");
    await host("drive", "notes");
    await to("storage/skills");
    await page.getByRole("row").filter({ hasText: "greet" }).getByText("1 box").waitFor();
    await page.getByRole("button", { name: "Remove greet" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Remove" }).click();
    await page.getByRole("rowheader", { name: "greet" }).waitFor({ state: "detached" });
    await to("storage/drives");
    await page.getByRole("button", { name: "Remove team/notes" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Remove" }).click();
    await page.getByRole("rowheader", { name: "team/notes" }).waitFor({ state: "detached" });
});

await step("an image is there with who uses it, and is removed", async () => {
    is(await host("image", "mine"), "mine");
    await to("storage/images");
    const row = page.getByRole("row").filter({ hasText: "mine" });
    await row.getByText("1 box").waitFor();
    has(await row.innerText(), "rootfs");
    await page.getByRole("button", { name: "Remove mine" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Remove" }).click();
    await page.getByRole("rowheader", { name: "mine" }).waitFor({ state: "detached" });
    await page.getByText("There are no images.").waitFor();
    is(await host("remove", "pictured"), "pictured"); // which has lived on without it
});

await step("images, drives and skills are listed", async () => {
    await to("storage/skills");
    await page.getByRole("rowheader", { name: "create-skill" }).waitFor();
    await to("storage/drives");
    await page.getByText("There are no drives.").waitFor();
    await to("storage/images");
    await page.getByText("There are no images.").waitFor();
});

await step("dark and light follow Cockpit", async () => {
    const theme = () => page.evaluate(() => [document.documentElement.dataset.theme, getComputedStyle(document.body).backgroundColor]);
    const choose = (style) => page.evaluate((s) => {
        localStorage.setItem("shell:style", s);
        window.dispatchEvent(new CustomEvent("cockpit-style", { detail: { style: s } }));
    }, style);
    await choose("dark");
    is(await theme(), ["dark", "rgb(21, 21, 21)"]);
    await choose("light");
    is(await theme(), ["light", "rgb(240, 240, 240)"]);
});

await step("the page is in German in a browser set to German", async () => {
    await page.context().addCookies([{ name: "CockpitLang", value: "de-de", url: process.env.CONSOLE_URL }]);
    await page.reload();
    await page.getByRole("link", { name: "Boxen" }).waitFor();
    is(await page.evaluate(() => document.documentElement.lang), "de");
});

await healthy(page);
await close(page);
