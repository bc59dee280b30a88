// SPDX-License-Identifier: Apache-2.0

import { open, step, host, has, is, close, healthy } from "./browser.mjs";

const page = await open();
const state = process.env.CONSOLE_STATE;
if (state === "silent")
    await page.addInitScript(() => sessionStorage.setItem("boxd:silence", "1000"));
await page.goto(process.env.CONSOLE_URL);

await step("the state is shown", async () => {
    if (state === "older")
        await page.getByText("This boxd is older than this console").waitFor();
    else if (state === "silent")
        is(await host("after"), "latest"); // no message: the list is there
    else
        await page.locator(`[data-state=${state}]`).waitFor();
});

await step("the page acts on the state", async () => {
    switch (state) {
    case "older":
        await page.getByRole("link", { name: "work", exact: true }).click();
        await page.locator("[data-state=older]").waitFor();
        break;
    case "silent": // the stream counts as dead, and is opened again at the same position
        for (;;) {
            const after = await host("after");
            if (after !== "latest") { // before its first event came, on a busy host
                is(after, "x-7");
                break;
            }
        }
        await page.getByRole("link", { name: "work", exact: true }).waitFor();
        break;
    case "not-installed":
        has(await page.locator("main").innerText(), "Install the package boxd");
        break;
    case "not-running":
        has(await page.locator("main").innerText(), "systemctl start boxd.socket");
        await host("restart");
        // The page tries again by itself too, and then there is no button any more.
        await Promise.any([page.getByRole("button", { name: "Try again" }).click(), page.getByText("There are no boxes.").waitFor()]);
        await page.getByText("There are no boxes.").waitFor();
        break;
    case "not-boxd":
        has(await page.locator("main").innerText(), "Something else answers");
        break;
    }
});

await healthy(page);
await close(page);
