// SPDX-License-Identifier: Apache-2.0

import { open, step, host, has, is, close, healthy } from "./browser.mjs";

const page = await open();
const server = process.env.CONSOLE_SERVER;
const fact = (name) => page.locator("dl.facts > div").filter({ has: page.getByText(name, { exact: true }) }).locator("dd");
const refused = page.getByRole("table", { name: "Refused" });
await page.goto(process.env.CONSOLE_URL + "#/box/uid%3A0/work/network");

await step("a box with a network shows its addresses and rules", async () => {
    has(await fact("Network").innerText(), "egress");
    has(await fact("Addresses").innerText(), ".");
    await page.getByRole("listitem").getByText("11.22.33.55/32 tcp 443", { exact: true }).waitFor();
    await page.getByText("Nothing was refused").waitFor();
});

await step("refusals appear as they happen, with the rule that would allow them", async () => {
    is(await host("connect", "80"), "");
    await refused.getByText(`a connection to ${server} port 80 by tcp is allowed by no rule; network_rules with "${server}/32 tcp 80" would allow it`).waitFor();
    has(await refused.getByRole("row").nth(1).innerText(), "network");
});

await step("rules that cannot be are refused in the form", async () => {
    await page.getByRole("button", { name: "Change rules" }).click();
    await page.getByLabel("Rules, one in a line").fill("010.0.0.1/8");
    await page.getByRole("dialog").getByRole("button", { name: "Change" }).click();
    await page.getByRole("dialog").getByRole("alert").getByText("010.0.0.1/8").waitFor();
});

await step("a rule that is added lets the connection through", async () => {
    await page.getByLabel("Rules, one in a line").fill(`11.22.33.55/32 tcp 443\n${server}/32 tcp 80`);
    await page.getByRole("dialog").getByRole("button", { name: "Change" }).click();
    await page.getByRole("listitem").getByText(`${server}/32 tcp 80`, { exact: true }).waitFor();
    is(await host("connect", "80"), "hello from outside\n");
});

await step("what was sent and refused is counted", async () => {
    await fact("Packets refused").getByText(/^[1-9]/).waitFor();
    await fact("Received").getByText(/^[1-9]/).waitFor();
    await fact("Sent").getByText(/^[1-9]/).waitFor();
});

await step("what was refused before the page was opened is there too", async () => {
    await page.reload();
    await refused.getByText(`${server} port 80`).first().waitFor();
});

await step("a box without a rule is shown as reaching nothing", async () => {
    await page.getByRole("button", { name: "Change rules" }).click();
    await page.getByLabel("Rules, one in a line").fill("");
    await page.getByRole("dialog").getByRole("button", { name: "Change" }).click();
    await page.getByText("No rule: names can be looked up, and nothing can be connected to.").waitFor();
    is(await host("connect", "80"), "");
});

await step("rules that the form gives as examples are allowed, and a wrong one is marked", async () => {
    await page.getByRole("link", { name: "Boxes" }).first().click();
    await page.getByRole("button", { name: "Create box" }).click();
    const dialog = page.getByRole("dialog", { name: "Create box" }), rules = dialog.getByLabel("Network rules");
    await dialog.getByLabel("Profile").selectOption("network_basic");
    const examples = (await dialog.getByText("One rule in a line").innerText()).match(/for example (.*?)\. Empty/)[1].split(", ");
    is(examples.length, 3);
    await rules.fill("nonsense tcp x");
    await dialog.locator("textarea[aria-invalid]").waitFor();
    await rules.fill(examples.join("\n"));
    await dialog.getByText("Allowed").waitFor();
    await dialog.getByLabel("Name").fill("many-rules");
    await dialog.getByRole("button", { name: "Create" }).click();
    await page.getByRole("heading", { name: "many-rules", level: 1 }).waitFor();
    await page.getByRole("link", { name: "Network" }).click();
    const rows = page.getByRole("region", { name: "Rules" }).getByRole("listitem");
    await rows.first().waitFor();
    const shown = await rows.allInnerTexts();
    is(shown.length, examples.length, shown.join(", ")); // in full, with the ports of names
    examples.forEach((rule) => is(shown.some((s) => s.startsWith(rule)), true, `${rule} of ${shown.join(", ")}`));
});

await healthy(page);
await close(page);
