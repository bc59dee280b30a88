// SPDX-License-Identifier: Apache-2.0

import { open, step, host, has, is, until, close, healthy } from "./browser.mjs";

const MiB = 2 ** 20;
const page = await open();
const box = process.env.CONSOLE_URL + "#/box/uid%3A0/work";
const meter = (name, within = page) => within.getByRole("meter", { name, exact: true });

/** shows waits for a bar to show what the kernel counts, in hundredths of the limit, which at least is so much. */
async function shows(name, within, file, limit, least, tolerance) {
    await until(`the bar of ${name}`, async () => {
        const bar = meter(name, within), shown = await bar.count() === 1 ? Number(await bar.getAttribute("aria-valuenow")) : null;
        const counted = 100 * Number(await host("kernel", file)) / limit;
        return [shown !== null && counted >= least && Math.abs(shown - counted) <= tolerance, { shown, counted }];
    });
}

await page.goto(box);
await step("a box that does nothing uses next to nothing", async () => {
    await shows("Memory", page, "memory.current", 256 * MiB, 0, 5);
    await shows("Processes", page, "pids.current", 40, 0, 1);
    has(await meter("Memory").getAttribute("aria-valuetext"), "/ 256 MiB");
    has(await meter("Processes").getAttribute("aria-valuetext"), "/ 40");
    is(await page.locator("[data-state=no-usage]").count(), 0, "what is said where nothing counts");
});

await step("bars show the memory and the processes that the kernel counts", async () => {
    await host("run", "hold { head -c 64M /dev/zero; for i in $(seq 15); do sleep 86400 & done; wait; } | tail -c 64M");
    await shows("Memory", page, "memory.current", 256 * MiB, 25, 5);
    await shows("Processes", page, "pids.current", 40, 40, 1);
});

await step("a bar shows what is in the workspace", async () => {
    await host("sh", "work head -c 16M /dev/zero > full");
    await until("the bar of the disk", async () => {
        const shown = await meter("Disk").getAttribute("aria-valuetext");
        return [shown.startsWith("16 MiB / 64 MiB"), shown];
    });
});

await step("a bar shows the processors that a program takes, which is no more than it may", async () => {
    await host("run", "busy while :; do :; done");
    await until("the bar of the processors", async () => {
        const shown = await meter("CPUs").count() === 1 ? await meter("CPUs").getAttribute("aria-valuetext") : "";
        const [used, limit] = shown.split(/ \/ | \(/).map(Number);
        return [used >= 0.3 && used <= 0.7 && limit === 0.5, shown];
    });
});

await step("plots show the same", async () => {
    await page.getByRole("img", { name: /^Memory over time, now (6[4-9]|[789]\d|1\d\d) MiB of 256 MiB$/ }).waitFor();
    await page.getByRole("img", { name: /^Processes and threads over time, now (1[5-9]|2\d) of 40$/ }).waitFor();
    await page.getByRole("img", { name: /^CPUs over time, now 0\.\d+ of 0\.5$/ }).waitFor();
    await page.getByRole("img", { name: /^Pressure over time, now CPU [1-9]/ }).waitFor();
    await page.getByRole("img", { name: /^Disk over time, now 16 MiB of 64 MiB$/ }).waitFor();
});

await step("the list has the same bars", async () => {
    await page.goto(process.env.CONSOLE_URL);
    const row = page.getByRole("row").filter({ has: page.getByRole("link", { name: "work", exact: true }) });
    await shows("Memory", row, "memory.current", 256 * MiB, 25, 5);
    await shows("Processes", row, "pids.current", 40, 40, 1);
    await meter("CPUs", row).waitFor();
    has(await meter("Disk", row).getAttribute("aria-valuetext"), "16 MiB / 64 MiB");
});

/** change submits other limits in the form. */
async function change(limits) {
    await page.goto(box + "/limits");
    for (const [name, value] of Object.entries(limits))
        await page.getByLabel(name, { exact: true }).fill(value);
    await page.getByRole("button", { name: "Change" }).click();
}

await step("less memory than is used is refused at its field, and changes nothing", async () => {
    await change({ Memory: "32MiB", CPUs: "1" });
    has(await page.getByRole("alert").locator(".notice.fail").innerText(), "memory");
    is(await page.getByLabel("Memory", { exact: true }).getAttribute("aria-invalid"), "true");
    is(await host("kernel", "memory.max"), String(256 * MiB));
    is(await host("kernel", "cpu.max"), "50000 100000");
});

await step("limits that are changed hold at once, and the bars are of them", async () => {
    await host("end", "busy");
    await change({ Memory: "112MiB", CPUs: "1" });
    await page.getByText("The limits hold now.").waitFor();
    is(await host("kernel", "memory.max"), String(112 * MiB));
    is(await host("kernel", "cpu.max"), "100000 100000");
    await page.goto(box);
    await shows("Memory", page, "memory.current", 112 * MiB, 57, 5);
    has(await meter("Memory").getAttribute("aria-valuetext"), "/ 112 MiB");
    has(await meter("CPUs").getAttribute("aria-valuetext"), "/ 1");
});

await step("programs that use more memory are killed, and that is shown", async () => {
    await host("run", "eater head -c 128M /dev/zero | tail -c 128M");
    await page.getByText("Killed for memory").waitFor();
});

await step("a frozen box is shown as frozen, and uses no CPU time", async () => {
    await page.getByRole("button", { name: "Freeze" }).click();
    await page.getByRole("button", { name: "Resume" }).waitFor();
    has(await host("kernel", "cgroup.events"), "frozen 1");
    await page.getByRole("button", { name: "Resume" }).click();
    await page.getByRole("button", { name: "Freeze" }).waitFor();
    has(await host("kernel", "cgroup.events"), "frozen 0");
});

await healthy(page);
await close(page);
