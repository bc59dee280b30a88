// SPDX-License-Identifier: Apache-2.0

import { open, step, host, has, is, close, healthy } from "./browser.mjs";

const page = await open();
await page.goto(process.env.CONSOLE_URL);
const row = (name) => page.getByRole("row").filter({ has: page.getByRole("link", { name, exact: true }) });

await step("a box that is there is listed", async () => {
    await row("first").waitFor();
    has(await row("first").innerText(), "ready");
});

await step("a box that is created elsewhere appears by itself", async () => {
    await host("create", "second");
    await row("second").waitFor();
});

await step("a box that ends disappears by itself", async () => {
    await host("remove", "second");
    await row("second").waitFor({ state: "detached" });
});

await step("the list is filtered", async () => {
    await page.getByPlaceholder("Filter").fill("nothing like it");
    await page.getByText("No box matches the filter.").waitFor();
    await page.getByPlaceholder("Filter").fill("");
    await row("first").waitFor();
});

const dialog = page.getByRole("dialog", { name: "Create box" });
await step("the form shows what policy takes away before anything is made", async () => {
    await page.getByRole("button", { name: "Create box" }).click();
    await dialog.getByText("Allowed").waitFor();
    await dialog.getByLabel("Memory").fill("400MiB");
    await dialog.getByText("memory: 256MiB instead of 400MiB").waitFor();
});

await step("the form says what would be refused, and at which field", async () => {
    await dialog.getByLabel("Memory").fill("9x");
    await dialog.getByText("must be a size, for example 512MiB").waitFor();
    is(await dialog.getByLabel("Memory").getAttribute("aria-invalid"), "true");
});

await step("the form works with the keyboard alone", async () => {
    await dialog.getByLabel("Memory").fill("64MiB");
    await dialog.getByText("Allowed").waitFor();
    await dialog.getByLabel("Name").focus();
    await page.keyboard.type("third");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "third", level: 1 }).waitFor();
    has(page.url(), "#/box/uid%3A0/third");
});

await step("escape closes a form, and the focus is where it was", async () => {
    await page.getByRole("link", { name: "Boxes" }).first().click();
    await row("third").waitFor();
    const create = page.getByRole("button", { name: "Create box" });
    await create.focus();
    await page.keyboard.press("Enter");
    await dialog.waitFor();
    await page.keyboard.press("Escape");
    await dialog.waitFor({ state: "detached" });
    is(await create.evaluate((e) => e === document.activeElement), true, "focus");
});

await step("the focus stays where it is when the list changes", async () => {
    await page.getByRole("link", { name: "third" }).focus();
    await host("create", "another");
    await row("another").waitFor();
    is(await page.evaluate(() => document.activeElement.textContent), "third");
});

await step("the list is updated after boxd was killed and started again", async () => {
    await host("kill");
    await page.locator("[data-state=not-running]").waitFor();
    await row("first").waitFor();
    await host("restart");
    await page.locator("[data-state=not-running]").waitFor({ state: "detached" });
    await host("create", "after");
    await row("after").waitFor();
});

await step("what is in the list has a name for a screen reader", async () => {
    for (const name of await page.locator("button, a, input, select, [role=meter]").evaluateAll((all) => all.filter((e) => e.checkVisibility() && !(e.innerText?.trim() || e.ariaLabel || e.labels?.length)).map((e) => e.outerHTML)))
        throw new Error("no name: " + name);
    is(await page.getByRole("table", { name: "Boxes" }).count(), 1);
    is(await page.getByRole("columnheader", { name: "Name" }).getAttribute("aria-sort"), "ascending");
});

await healthy(page);
await close(page);
