// SPDX-License-Identifier: Apache-2.0
//
// The pictures of docs/guide/console.md.

import { join } from "node:path";
import { open, step, close, healthy } from "./browser.mjs";

const page = await open({ viewport: { width: 1120, height: 720 }, reducedMotion: "reduce" });
const to = (place) => page.goto(process.env.CONSOLE_URL + "#/" + place);
const picture = async (name) => {
    await page.mouse.move(0, 0);
    await page.screenshot({ path: join(process.env.CONSOLE_PICTURES, name), animations: "disabled" });
};

await step("boxes", async () => {
    await to("");
    await page.getByRole("meter", { name: "Memory" }).first().waitFor();
    await page.getByText(/^0\.[1-9]\d* \/ 1$/).first().waitFor(); // the second look knows how busy they are
    await page.setViewportSize({ width: 1120, height: 550 });
    await picture("boxes.png");
});

await step("create", async () => {
    await page.setViewportSize({ width: 1120, height: 720 });
    await page.getByRole("button", { name: "Create box" }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByLabel("Name").fill("agent-cleo");
    await dialog.getByLabel("Memory").fill("256MiB");
    await dialog.getByText("256 MiB").waitFor();
    await picture("create.png");
    await page.keyboard.press("Escape");
});

await step("box", async () => {
    await page.setViewportSize({ width: 1120, height: 1190 });
    await to("box/uid%3A0/build-1842");
    await page.locator(".plot canvas").first().waitFor();
    await page.getByText(/^0\.[1-9]\d* \/ 1$/).first().waitFor();
    await picture("box.png");
});

await step("terminal", async () => {
    await page.setViewportSize({ width: 1120, height: 640 });
    await to("box/uid%3A0/build-1842/terminal");
    await page.locator(".xterm-rows").getByText("$").first().waitFor();
    await page.locator(".xterm-helper-textarea").focus();
    await page.keyboard.type("ls -l; python3 src/main.py; id -un\n");
    await page.locator(".xterm-rows").getByText("box", { exact: true }).waitFor();
    await picture("terminal.png");
});

await step("host", async () => {
    await page.setViewportSize({ width: 1120, height: 960 });
    await page.emulateMedia({ colorScheme: "dark" });
    await to("host");
    await page.locator(".checks").waitFor();
    await page.getByRole("meter", { name: "Boxes" }).waitFor();
    await picture("host.png");
});

await healthy(page);
await close(page);
