// SPDX-License-Identifier: Apache-2.0
//
// The page of the host: whether it can run boxes, and how busy it is.

import { get, path, every } from "./boxd.js";
import { h, button, show } from "./dom.js";
import { _, plural, fill, count, when } from "./text.js";
import { Table, facts, section, tag, bar, info } from "./widgets.js";
import { person } from "./page-boxes.js";

const cockpit = window.cockpit;

const signs = { ok: "✓", warn: "!", fail: "✗" };
const words = () => ({ ok: _("in order"), warn: _("could be better"), fail: _("is wrong") });

/** checklist shows the checks of the doctor; those that ask for something come first. */
function checklist(doctor) {
    const rank = { fail: 0, warn: 1, ok: 2 };
    const list = doctor.checks.map((c, i) => [c, i]).sort(([a, i], [b, j]) => rank[a.level] - rank[b.level] || i - j).map(([c]) => c);
    return h("ul", { class: "checks" }, list.map((c) => h("li", { class: c.level }, h("span", { class: "sign", "aria-hidden": true }, signs[c.level]),
        h("div", {}, h("span", { class: "name" }, c.name), h("span", { class: "hidden-text" }, " ", words()[c.level]), h("span", { class: "muted" }, " – ", c.detail)),
        c.hint && h("div", { class: "do" }, h("span", { class: "hidden-text" }, _("What to do:"), " "), c.hint))));
}

/** pressure reads what the kernel says programs of the host wait for. */
async function pressure() {
    const read = async (what) => {
        const text = await cockpit.file("/proc/pressure/" + what).read().catch(() => null);
        const m = text?.match(/^some avg10=([\d.]+) avg60=([\d.]+)/m);
        return m ? { now: Number(m[1]), minute: Number(m[2]) } : null;
    };
    const [cpu, memory, io] = await Promise.all(["cpu", "memory", "io"].map(read));
    return { cpu, memory, io };
}

/** hostPage shows it. */
export function hostPage(root, { signal, trouble }) {
    const now = h("div", {}), wait = h("div", {}), checks = h("div", {}), queue = h("div", {}), pool = h("div", {}), notes = h("div", {});
    const errors = new Table({
        caption: _("Errors"), key: (e) => e.n, size: 25, empty: _("No request has failed lately."),
        columns: [
            { title: _("Time"), value: (e) => e.time, draw: (e) => when(e.time), class: "tight" },
            { title: _("Who"), value: (e) => e.principal ? person(e.principal) : "boxd" },
            { title: _("Status"), value: (e) => e.status ?? e.kind, class: "tight" },
            { title: _("Box"), value: (e) => e.session ?? "" },
            { title: _("What"), value: (e) => e.detail },
        ],
    });
    const places = new Table({
        caption: _("Waiting requests"), key: (p) => p.owner + p.id, empty: _("No request waits for room."),
        columns: [
            { title: _("Place"), value: (p) => p.position, class: "tight" }, { title: _("Box"), value: (p) => p.id }, { title: _("Owner"), value: (p) => p.owner, draw: (p) => person(p.owner) },
            { title: _("Waits for"), value: (p) => p.reason }, { title: _("Since"), value: (p) => p.since, draw: (p) => when(p.since) },
        ],
    });
    show(root, h("h1", { class: "hidden-text" }, _("Host")), notes, h("div", { class: "cards" }, section(_("boxd"), now), section(_("Pressure"), wait)),
        section(_("Can this host run boxes?"), h("div", { class: "tools" }, button(_("Check again"), () => examine())), checks),
        h("div", { class: "cards" }, section(_("Queue"), queue, places.element), section(_("Boxes started ahead of need"), pool)), section(_("Errors"), errors.element));

    let examining = false;
    const examine = async () => {
        if (examining)
            return;
        examining = true;
        if (!checks.firstChild)
            show(checks, h("p", { class: "muted", role: "status" }, _("Checking…")));
        try {
            const doctor = await get(path("doctor"));
            const n = doctor.checks.filter((c) => c.level !== "ok").length;
            if (!signal.aborted)
                show(checks, n === 0 ? info("ok", _("All is in order.")) : info(doctor.ok ? "warn" : "fail", fill(plural("$0 thing could be better.", "$0 things could be better.", n), n)), checklist(doctor));
        } catch (failure) {
            trouble(failure);
        }
        examining = false;
    };
    const drawStatus = (s) => {
        const level = { ok: "ok", degraded: "warn", off: "warn", failed: "fail" }[s.state];
        show(notes, s.state !== "ok" && info(level === "fail" ? "fail" : "warn", fill(_("The state of boxd is: $0"), s.state), [s.off, ...s.degraded].filter(Boolean).map((d) => h("p", {}, d))));
        show(now, facts([
            [_("State"), tag(s.state, level)], [_("Version"), s.version], [_("Runs since"), when(s.started_at)],
            [_("Boxes"), bar(s.max_sessions ? s.sessions / s.max_sessions : null, count(s.sessions) + " / " + count(s.max_sessions), _("Boxes"))],
            [_("Stopped boxes"), count(s.stopped)], [_("Programs running"), count(s.running)], [_("Processes"), count(s.processes)], [_("Programs so far"), count(s.executed)],
            [_("Control groups"), s.control_groups], [_("Not enforced on this host"), s.unenforced.join(", ")],
        ]));
        show(queue, facts([[_("Wait for a box"), count(s.queue.waiting)], [_("Wait for a program to end"), count(s.queue.executions)], [_("Longest wait"), s.queue.wait], [_("Room for"), count(s.queue.length)]]));
        places.update(s.queue.places ?? []);
        show(pool, s.warm.length === 0 ? h("p", { class: "muted" }, _("No profile has any.")) : facts(s.warm.map((w) => [w.profile, bar(w.want ? w.ready / w.want : null, fill(_("$0 of $1 ready"), w.ready, w.want), w.profile)])));
    };
    const load = every(5000, async () => {
        try {
            const [s, e, p] = await Promise.all([get(path("status")), get(path("errors")), pressure()]);
            if (signal.aborted)
                return;
            trouble(null);
            drawStatus(s);
            errors.update(e.errors.map((x, n) => ({ ...x, n: n + x.time + x.request })).reverse());
            show(wait, p.cpu || p.memory || p.io ? facts([[_("CPUs"), p.cpu], [_("Memory"), p.memory], [_("Disk"), p.io]].map(([name, v]) => [name, v && bar(v.now / 100, fill(_("$0 %, last minute $1 %"), Math.round(v.now), Math.round(v.minute)), name)]))
                : h("p", { class: "muted", "data-state": "no-pressure" }, _("The kernel of this host does not tell (PSI is off).")),
            h("p", { class: "muted" }, _("The share of the last ten seconds in which some program of the host waited.")));
        } catch (failure) {
            trouble(failure);
        }
    }, signal);
    examine();
    return () => {
        load();
        examine();
    };
}

