// SPDX-License-Identifier: Apache-2.0

import { open, step, host, has, is, close } from "./browser.mjs";

const page = await open({ ignoreHTTPSErrors: true }); // the certificate of Cockpit is self-signed
await page.goto(process.env.CONSOLE_URL + "boxd");
const console = page.frameLocator("iframe[name='cockpit1:localhost/boxd']");

/** login is what a person does at Cockpit's first page. */
async function login(password) {
    await page.locator("#login-user-input").fill("anna");
    await page.locator("#login-password-input").fill(password);
    await page.locator("#login-button").click();
}

await step("a wrong password is refused", async () => {
    await login("wrong");
    await page.getByText("Wrong user name or password").waitFor();
});

await step("the right password logs in, and the boxes are in Cockpit's menu", async () => {
    await login("geheim, ü");
    await console.getByText("There are no boxes.").waitFor();
    is(await page.getByRole("link", { name: "Boxes", exact: true }).getAttribute("href"), "/boxd");
});

await step("a box that the person makes is that person's", async () => {
    await console.getByRole("button", { name: "Create box" }).click();
    const dialog = console.getByRole("dialog", { name: "Create box" });
    await dialog.getByText("Allowed").waitFor();
    await dialog.getByLabel("Name").fill("mine");
    await dialog.getByLabel("Memory").fill("96MiB");
    await dialog.getByText("Allowed").waitFor();
    await dialog.getByRole("button", { name: "Create" }).click();
    await console.getByRole("heading", { name: "mine", level: 1 }).waitFor();
    has(await host("boxctl", "list"), "mine");
    is((await host("group", "mine")).trim(), String(96 * 2 ** 20), "the limit of memory");
    await console.getByRole("meter", { name: "Memory" }).first().waitFor();
});

await step("a terminal is a shell in the box", async () => {
    await console.getByRole("link", { name: "Terminal" }).click();
    const term = console.locator(".xterm-rows");
    await term.getByText("$").first().waitFor();
    await console.locator(".xterm-helper-textarea").focus();
    await page.keyboard.type("echo $((6*7)) > answer; echo written\n");
    await term.getByText("written", { exact: true }).waitFor();
    is(await host("boxctl", "exec mine -- cat answer"), "42\n");
});

await step("the host page shows what boxes need and what waits", async () => {
    await console.getByRole("link", { name: "Boxes" }).first().click();
    await console.getByRole("link", { name: "Host" }).click();
    await console.getByRole("listitem").filter({ hasText: "cgroups" }).first().waitFor();
    await console.getByRole("meter", { name: "CPUs" }).first().waitFor();
});

await step("the list is updated after boxd has ended and was started by its socket", async () => {
    await host("systemctl", "stop boxd.service");
    await console.getByRole("link", { name: "Boxes" }).first().click();
    await console.getByRole("link", { name: "mine", exact: true }).waitFor();
    has(await host("systemctl", "is-active boxd.service"), "active");
});

await step("nothing in the pages has failed", async () => {
    is(page.faults.filter((fault) => fault.includes("/boxd/")), []);
});

await step("after a logout nothing is shown", async () => {
    await page.getByRole("button", { name: "Session" }).click();
    await page.getByRole("menuitem", { name: "Log out" }).click();
    await page.locator("#login-password-input").waitFor();
    await page.goto(process.env.CONSOLE_URL + "cockpit/@localhost/boxd/index.html");
    is(await page.getByText("Boxes").count(), 0);
});

await close(page);
