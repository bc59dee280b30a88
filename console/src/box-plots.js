// SPDX-License-Identifier: Apache-2.0
//
// What a box has used over the last hour, as boxd has kept it.

import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { get, every } from "./boxd.js";
import { h, show } from "./dom.js";
import { _, fill, size, decimal, count, secondsOf, span } from "./text.js";
import { section, notice, info } from "./widgets.js";
import { color } from "./theme.js";

/** plots are what is drawn: a title, lines with name and value of a sample, how a value is written, and the limit. */
const plots = () => [
    { title: _("CPUs"), lines: [[_("used"), (s) => s.usage && s.usage.cpu_percent / 100]], write: decimal, limit: (b) => b.cpus },
    { title: _("Memory"), lines: [[_("used"), (s) => s.usage?.memory]], write: size, limit: (b) => b.memory, base: 1024 },
    { title: _("Processes and threads"), lines: [[_("running"), (s) => s.usage?.pids]], write: count, limit: (b) => b.pids },
    { title: _("Pressure"), lines: [[_("CPU"), (s) => s.usage?.pressure.cpu], [_("Memory"), (s) => s.usage?.pressure.memory], [_("disk"), (s) => s.usage?.pressure.io]], write: (v) => decimal(v) + " %", limit: () => null },
    { title: _("Disk"), lines: [[_("used"), (s) => s.workspace?.used]], write: size, limit: (b) => b.workspace_quota, base: 1024 },
];

const height = 150;

/** Plot draws one of them. */
class Plot {
    constructor(what) {
        this.what = what;
        this.now = h("span", {});
        this.place = h("div", { role: "img" });
        this.element = h("div", { class: "plot" }, h("h3", {}, what.title, this.now), this.place);
    }

    #make(most) {
        const { lines, write, base } = this.what;
        const line = () => color("line"), muted = () => color("muted");
        const axis = { stroke: muted, grid: { stroke: line, width: 0.5 }, ticks: { stroke: line, width: 0.5 }, font: "11px sans-serif" };
        return new uPlot({
            width: this.place.clientWidth || 400, height, padding: [8, 28, 0, 0], legend: { show: lines.length > 1, live: false }, cursor: { points: { size: 6 } },
            scales: { y: { range: (_u, _min, max) => [0, Math.max(most ?? 0, max * 1.1) || 1] } },
            axes: [{ ...axis, size: 28, space: 70, values: (_u, ticks) => ticks.map((t) => new Date(t * 1000).toLocaleTimeString(document.documentElement.lang, { hour: "2-digit", minute: "2-digit" })) },
                { ...axis, size: 70, space: 30, incrs: base ? Array.from({ length: 45 }, (_v, i) => 2 ** i) : undefined, values: (_u, ticks) => ticks.map(write) }],
            series: [{}, ...lines.map(([name], i) => ({ label: name, stroke: () => color("plot-" + (i + 1)), width: 1.5, fill: lines.length === 1 ? () => color("plot-1") + "22" : undefined, points: { show: false } }))],
        }, [[], ...lines.map(() => [])], this.place);
    }

    /** draw shows samples of a box. It reports whether there was anything to show. */
    draw(samples, box, gap) {
        const { lines, write, limit } = this.what;
        const data = [[], ...lines.map(() => [])];
        let last = null;
        for (const s of samples) {
            const values = lines.map(([, value]) => value(s) ?? null);
            if (values.every((v) => v === null))
                continue;
            const t = Date.parse(s.at) / 1000;
            if (last !== null && t - last > gap) { // boxd was not there, or the box was stopped
                data[0].push(last + gap / 2);
                lines.forEach((_l, i) => data[i + 1].push(null));
            }
            last = t;
            data[0].push(t);
            values.forEach((v, i) => data[i + 1].push(v));
        }
        this.element.hidden = data[0].length === 0;
        if (this.element.hidden)
            return false;
        const most = limit(box) || null;
        if (!this.plot || this.most !== most) {
            this.plot?.destroy();
            this.plot = this.#make(most);
            this.most = most;
        }
        this.plot.setData(data);
        const newest = lines.map(([name], i) => [name, data[i + 1].at(-1)]);
        const text = newest.map(([name, v]) => (lines.length > 1 ? name + " " : "") + write(v)).join(", ");
        this.now.textContent = most ? fill(_("$0 of $1"), text, write(most)) : text;
        this.place.setAttribute("aria-label", fill(_("$0 over time, now $1"), this.what.title, this.now.textContent));
        return true;
    }

    resize() {
        if (this.plot && this.place.clientWidth)
            this.plot.setSize({ width: this.place.clientWidth, height });
    }

    redraw() {
        this.plot?.redraw(false);
    }
}

/** plotsView shows the plots of a box, and goes on with them. */
export function plotsView(parent, { box, signal }) {
    const list = plots().map((p) => new Plot(p));
    const failed = h("div", {}), all = h("div", { class: "plots" }, list.map((p) => p.element));
    list.forEach((p) => p.element.hidden = true);
    show(parent, section(_("Over time"), failed, all));
    let samples = [];
    every(5000, async () => {
        if (box.ended !== null)
            return;
        try {
            const answer = await get(box.path("usage", "history"), { ...box.who, after: samples.at(-1)?.at });
            if (signal.aborted)
                return;
            const oldest = Date.now() - 1000 * secondsOf(answer.kept);
            samples = [...samples, ...answer.samples].filter((s) => Date.parse(s.at) >= oldest);
            const gap = 3.5 * secondsOf(answer.interval);
            const some = list.map((p) => p.draw(samples, box.session, gap)).includes(true);
            show(failed, some ? null : secondsOf(answer.kept) === 0 ? h("p", { class: "muted", "data-state": "no-samples" }, _("boxd takes no samples: usage.history of box.toml switches them off."))
                : box.session.usage || box.session.workspace ? h("p", { class: "muted" }, fill(_("The first sample comes within $0."), span(secondsOf(answer.interval))))
                    : h("p", { class: "muted" }, _("There is nothing to show: this host does not count what boxes use.")));
        } catch (failure) {
            if (failure.status === 404 && failure.message.includes("no route"))
                show(failed, h("div", { "data-state": "older" }, info("warn", _("This boxd is older than this console"), h("p", {}, _("It keeps no samples. Update the package boxd.")))));
            else
                show(failed, notice(failure));
        }
    }, signal);
    const watch = new ResizeObserver(() => list.forEach((p) => p.resize()));
    watch.observe(all);
    const theme = () => list.forEach((p) => p.redraw());
    document.addEventListener("theme", theme);
    signal.addEventListener("abort", () => {
        watch.disconnect();
        document.removeEventListener("theme", theme);
    });
}
