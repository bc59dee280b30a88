// SPDX-License-Identifier: Apache-2.0

import { open, step, host, has, close, healthy } from "./browser.mjs";

const page = await open();
const fact = (name) => page.locator("dl.facts > div").filter({ has: page.getByText(name, { exact: true }) }).locator("dd");
const waiting = page.getByRole("table", { name: "Waiting requests" });
await page.goto(process.env.CONSOLE_URL + "#/host");

await step("preforked boxes are started and shown", async () => {
    await page.getByRole("meter", { name: "default" }).waitFor();
    await page.getByText("2 of 2 ready").waitFor();
});

await step("no request waits", async () => {
    await page.getByText("No request waits for room.").waitFor();
    await fact("Room for").getByText("7", { exact: true }).waitFor();
});

await step("preforked boxes are ended for requested ones", async () => {
    await host("create", "second");
    await host("create", "third");
    await page.getByText("0 of 2 ready").waitFor();
});

await step("a waiting request shows its position and what it waits for", async () => {
    await host("wait", "fourth");
    await waiting.getByRole("row").filter({ hasText: "fourth" }).waitFor();
    await host("wait", "fifth");
    const row = waiting.getByRole("row").filter({ hasText: "fifth" });
    await row.waitFor();
    has(await row.innerText(), "root");
    has(await row.innerText(), "sessions");
    await fact("Wait for a box").getByText("2", { exact: true }).waitFor();
});

await step("a program that waits for another one to end is counted", async () => {
    await host("run", "first");
    await fact("Wait for a program to end").getByText("1", { exact: true }).waitFor();
    await host("end", "first");
    await fact("Wait for a program to end").getByText("0", { exact: true }).waitFor();
});

await step("an admitted request no longer waits", async () => {
    await host("remove", "first");
    await waiting.getByRole("row").filter({ hasText: "fourth" }).waitFor({ state: "detached" });
    await fact("Wait for a box").getByText("1", { exact: true }).waitFor();
    await host("remove", "second");
    await page.getByText("No request waits for room.").waitFor();
});

await healthy(page);
await close(page);
