// SPDX-License-Identifier: Apache-2.0
//
// The page of all boxes.

import { Boxes, keyOf } from "./boxes.js";
import { h, button, show } from "./dom.js";
import { _, plural, fill, size, decimal, count, span } from "./text.js";
import { Table, bar, tag, info } from "./widgets.js";
import { showTrouble } from "./trouble.js";
import { createBox } from "./create.js";

const levels = { ready: "ok", running: "ok", frozen: "info", stopped: "", starting: "info", lost: "fail", unhealthy: "fail", ending: "warn" };

/** state is the state of a box as a word with a colour. */
export function state(s) {
    return tag(s.state, levels[s.state] ?? "");
}

/** linkTo is the address of the page of a box. */
export function linkTo(s, part) {
    return "#/box/" + [s.owner, s.id, ...(part ? [part] : [])].map(encodeURIComponent).join("/");
}

/** timeLeft is when a box ends if nobody uses it, in seconds. */
export function timeLeft(s) {
    return s.expires_at ? (Date.parse(s.expires_at) - Date.now()) / 1000 : null;
}

/** person is the owner of a box without what is the same for all. */
export function person(owner) {
    return owner === "uid:0" ? "root" : owner;
}

/** memoryBar, cpuBar and pidsBar show use against the limit, or the limit alone where nothing counts. */
export function memoryBar(s) {
    return s.usage ? bar(s.memory ? s.usage.memory / s.memory : null, size(s.usage.memory) + " / " + size(s.memory), _("Memory"))
        : bar(null, size(s.memory), _("Limit; this host does not count what is used"));
}

/** cpuBar shows the processors in use. */
export function cpuBar(s) {
    return s.usage && s.cpuShare !== undefined ? bar(s.cpus ? s.cpuShare / s.cpus : null, decimal(s.cpuShare) + " / " + decimal(s.cpus), _("CPUs"))
        : bar(null, decimal(s.cpus), s.usage ? _("Limit") : _("Limit; this host does not count what is used"));
}

/** pidsBar shows the processes and threads. */
export function pidsBar(s) {
    return s.usage ? bar(s.pids ? s.usage.pids / s.pids : null, count(s.usage.pids) + " / " + count(s.pids), _("Processes"))
        : bar(null, count(s.pids), _("Limit; this host does not count what is used"));
}

/** diskBar shows what is in the workspace. */
export function diskBar(s) {
    const w = s.workspace, limit = w?.limit || s.workspace_quota;
    return w && limit ? bar(w.used / limit, size(w.used) + " / " + size(limit), _("Disk")) : bar(null, limit ? size(limit) : _("no limit"), _("Limit"));
}

function columns(owner) {
    const steps = (share) => share === undefined || share === null ? "" : Math.round(share * 200);
    return [
        { title: _("Name"), value: (s) => s.id, draw: (s) => h("a", { href: linkTo(s) }, s.id) },
        ...(owner ? [{ title: _("Owner"), value: (s) => s.owner, draw: (s) => person(s.owner) }] : []),
        { title: _("State"), value: (s) => s.state, draw: state, class: "tight" },
        { title: _("Profile"), value: (s) => s.profile },
        { title: _("Memory"), value: (s) => s.usage?.memory ?? s.memory, version: (s) => s.usage ? steps(s.usage.memory / s.memory) + size(s.usage.memory) + s.memory : s.memory, draw: memoryBar },
        { title: _("CPUs"), value: (s) => s.cpuShare ?? s.cpus, version: (s) => decimal(s.cpuShare ?? -1) + "/" + s.cpus, draw: cpuBar },
        { title: _("Processes"), value: (s) => s.usage?.pids ?? s.pids, version: (s) => (s.usage?.pids ?? "") + "/" + s.pids, draw: pidsBar },
        { title: _("Disk"), value: (s) => s.workspace?.used ?? s.workspace_quota, version: (s) => size(s.workspace?.used ?? 0) + s.workspace_quota, draw: diskBar },
        { title: _("Running"), value: (s) => s.running, class: "number" },
        { title: _("Time left"), value: (s) => s.expires_at ?? null, version: left, draw: left, class: "number" },
    ];
}

function left(s) {
    const t = timeLeft(s);
    return t === null ? "–" : t <= 0 ? _("now") : span(t < 60 ? Math.ceil(t / 5) * 5 : t - t % 60);
}

/** boxesPage shows all boxes. */
export function boxesPage(root, { events, signal, trouble }) {
    const boxes = new Boxes(events, signal);
    const filter = h("input", { type: "search", placeholder: _("Filter"), "aria-label": _("Filter by name, owner, profile, state or label"), oninput: () => draw() });
    const summary = h("span", { class: "muted", role: "status" });
    const older = h("div", {});
    const place = h("div", {});
    const card = h("section", { class: "card" }, h("div", { class: "tools" }, filter, summary, h("span", { class: "fill" }), button(_("Create box"), () => createBox(), { class: "primary" })), place);
    show(root, h("h1", { class: "hidden-text" }, _("Boxes")), older, card);

    let table = null, tableAll = null;
    const draw = () => {
        if (!table || tableAll !== boxes.all) {
            tableAll = boxes.all;
            const list = columns(boxes.all);
            table = new Table({ caption: _("Boxes"), columns: list, key: keyOf, empty: _("There are no boxes."), sort: { column: list[0], up: true } });
            show(place, table.element);
        }
        const wanted = filter.value.trim().toLowerCase();
        const rows = boxes.rows.filter((s) => wanted === "" || [s.id, s.owner, s.profile, s.state, ...Object.entries(s.labels ?? {}).map((l) => l.join("="))].some((t) => t.toLowerCase().includes(wanted)));
        show(table.empty, wanted === "" ? _("There are no boxes.") : _("No box matches the filter."));
        table.update(rows);
        const n = boxes.list.size;
        summary.textContent = rows.length === n ? fill(plural("$0 box", "$0 boxes", n), count(n)) : fill(_("$0 of $1 boxes"), count(rows.length), count(n));
        show(older, boxes.older && info("warn", _("This boxd is older than this console"), h("p", {}, _("It does not tell what boxes use. Update the package boxd."))));
    };
    boxes.addEventListener("change", () => {
        trouble(null);
        draw();
    }, { signal });
    boxes.addEventListener("failure", (e) => trouble(e.detail), { signal });
    return boxes.refresh;
}
