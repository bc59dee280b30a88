// SPDX-License-Identifier: Apache-2.0

import { open, step, has, is, close, healthy } from "./browser.mjs";

const page = await open();
const who = process.env.CONSOLE_PERSON;
const box = (name) => page.getByRole("link", { name, exact: true });
const to = (place) => page.goto(process.env.CONSOLE_URL + "#/" + place);
await page.goto(process.env.CONSOLE_URL);

await step("the boxes that the person may see", async () => {
    switch (who) {
    case "user":
        await box("of-user").waitFor();
        is(await box("of-root").count(), 0, "boxes of others");
        is(await page.getByRole("columnheader", { name: "Owner" }).count(), 0, "owners");
        break;
    case "operator":
        await box("of-user").waitFor();
        await box("of-root").waitFor();
        break;
    case "stranger":
        await page.locator("[data-state=no-access]").waitFor();
        has(await page.locator("main").innerText(), "usermod -aG boxd");
        break;
    case "locked":
        await page.locator("[data-state=denied]").waitFor();
        break;
    }
});

await step("the audit log", async () => {
    await to("activity/audit");
    const state = { user: "denied", stranger: "no-access", locked: "denied" }[who];
    if (state)
        await page.locator(`[data-state=${state}]`).waitFor();
    else
        await page.getByRole("cell", { name: "POST /v1/sessions" }).first().waitFor();
});

await step("an audit log with unreadable files is not shown as broken", async () => {
    if (who !== "operator")
        return;
    await page.getByRole("button", { name: "Verify the chain" }).click();
    await page.locator("[data-state=chain-unknown]").waitFor();
});

await step("a box of another", async () => {
    await to("box/uid%3A0/of-root");
    switch (who) {
    case "operator":
        await page.getByRole("heading", { name: "of-root", level: 1 }).waitFor();
        break;
    case "stranger":
        await page.locator("[data-state=no-access]").waitFor();
        break;
    default:
        await page.locator("[data-state=denied]").waitFor();
    }
});

await healthy(page);
await close(page);
