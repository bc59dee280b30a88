// SPDX-License-Identifier: Apache-2.0
//
// The page of what has happened: events as they come, and the audit log.

import { get, path, lines, auditDirectory, socket } from "./boxd.js";
import { h, button, show } from "./dom.js";
import { _, plural, fill, count, when, precise } from "./text.js";
import { Table, section, tabs, tag, info, notice } from "./widgets.js";
import { person, linkTo } from "./page-boxes.js";
import { showTrouble } from "./trouble.js";

const cockpit = window.cockpit;

// So many events are held in the page, as many as boxd has in memory.
const most = 8192;

/** level is the colour of an event. */
function level(type) {
    return /failed|oom|denied|unhealthy|refused/.test(type) ? "fail" : /quota|gap|stopping/.test(type) ? "warn" : /started|ready|thawed|recovered/.test(type) ? "ok" : /ended|stopped/.test(type) ? "" : "info";
}

/** activityPage shows events, or with "audit" in its address the audit log. */
export function activityPage(root, context) {
    const audit = context.rest[0] === "audit";
    const body = h("div", { class: "page" });
    show(root, h("h1", { class: "hidden-text" }, _("Activity")), tabs(_("Parts of the page"), [["events", _("Events"), "#/activity"], ["audit", _("Audit log"), "#/activity/audit"]], audit ? "audit" : "events"), body);
    return audit ? auditView(body, context) : eventsView(body, context);
}

function input(label, list) {
    const e = h("input", { type: "search", placeholder: label, "aria-label": label, list });
    return e;
}

function eventsView(body, { events, signal, trouble }) {
    const all = [];
    const text = input(_("Filter")), kind = h("select", { "aria-label": _("Type"), onchange: () => draw() }, h("option", { value: "" }, _("All types")));
    const summary = h("span", { class: "muted", role: "status" });
    const types = new Set();
    text.addEventListener("input", () => draw());
    const table = new Table({
        caption: _("Events"), key: (e) => e.id, size: 100, empty: _("No event matches."),
        columns: [
            { title: _("Time"), value: (e) => e.time, draw: (e) => h("time", { datetime: e.time, title: when(e.time) }, precise(e.time)), class: "tight mono" },
            { title: _("Type"), value: (e) => e.type, draw: (e) => tag(e.type, level(e.type)), class: "tight" },
            { title: _("Box"), value: (e) => e.session ?? "", draw: (e) => e.session ? h("a", { href: linkTo({ owner: e.owner, id: e.session }) }, e.session) : "", class: "name" },
            { title: _("Owner"), value: (e) => e.owner ?? "", draw: (e) => e.owner ? person(e.owner) : "" },
            { title: _("What"), value: (e) => [e.process, e.reason, e.detail, e.gap && (e.gap.restarted ? _("boxd was started anew; what came before is not known") : fill(_("$0 events are not kept"), e.gap.missed))].filter(Boolean).join(" · ") },
            { title: _("Request"), value: (e) => e.request ?? "", draw: (e) => e.request ? h("a", { href: "#/activity/audit/" + encodeURIComponent(e.request), class: "mono" }, e.request.slice(0, 8)) : "", class: "tight" },
        ],
    });
    show(body, section(_("Events"), h("div", { class: "tools" }, text, kind, summary), table.element));
    let frame = null;
    const draw = () => {
        frame = null;
        const wanted = text.value.trim().toLowerCase();
        const rows = all.filter((e) => (!kind.value || e.type === kind.value) && (!wanted || [e.type, e.session, e.owner, e.principal, e.process, e.reason, e.detail, e.request].some((v) => v?.toLowerCase().includes(wanted))));
        table.update(rows);
        summary.textContent = fill(plural("$0 event", "$0 events", rows.length), count(rows.length));
    };
    const add = (e) => {
        if (!types.has(e.type)) {
            types.add(e.type);
            const chosen = kind.value;
            show(kind, h("option", { value: "" }, _("All types")), [...types].sort().map((t) => h("option", { value: t }, t)));
            kind.value = chosen;
        }
        all.unshift(e);
        all.length = Math.min(all.length, most);
        frame ??= requestAnimationFrame(draw);
    };
    const known = new Set();
    const once = (e) => {
        if (!known.has(e.id)) {
            known.add(e.id);
            add(e);
        }
    };
    events.addEventListener("event", ({ detail }) => once(detail), { signal });
    let close = null;
    const load = () => {
        close?.();
        close = lines("/v1/events", { follow: "false" }, (line) => line.startsWith("data:") && once(JSON.parse(line.slice(5))), (failure) => {
            trouble(failure);
            if (!failure)
                draw();
        });
    };
    signal.addEventListener("abort", () => close?.());
    load();
    return load;
}

function auditView(body, { signal, trouble, rest }) {
    const session = input(_("Box")), principal = input(_("Principal")), request = input(_("Request"));
    request.value = rest[1] ?? "";
    const n = h("select", { "aria-label": _("Number of records") }, ["100", "1000", "10000"].map((v) => h("option", { value: v }, fill(_("last $0"), count(v)))));
    const failed = h("div", {}), chain = h("div", { role: "status" }), head = h("span", { class: "muted" });
    const asked = (r) => [r.what?.argv?.join(" "), r.what?.argv_sha256 && "sha256:" + r.what.argv_sha256, r.what?.changes?.join(", "), r.detail].filter(Boolean).join(" · ");
    const table = new Table({
        caption: _("Audit log"), key: (r) => r.seq, size: 100, empty: _("No record matches."),
        columns: [
            { title: _("No."), value: (r) => r.seq, class: "number" },
            { title: _("Time"), value: (r) => r.time, draw: (r) => when(r.time), class: "tight" },
            { title: _("Who"), value: (r) => r.principal ?? "", draw: (r) => r.principal ? person(r.principal) : "boxd" },
            { title: _("By"), value: (r) => r.via ?? "", class: "tight" },
            { title: _("Route"), value: (r) => r.route ?? r.kind, draw: (r) => h("code", {}, r.route ?? r.kind), class: "tight" },
            { title: _("Box"), value: (r) => r.session ?? "", class: "name" },
            { title: _("Asked for"), value: asked },
            { title: _("Outcome"), value: (r) => r.outcome ?? "", draw: (r) => r.status ? tag([r.status, r.outcome].filter(Boolean).join(" "), r.status < 400 ? "ok" : r.status < 500 ? "warn" : "fail") : "", class: "tight" },
        ],
    });
    const form = h("form", { class: "tools", onsubmit: (e) => {
        e.preventDefault();
        load();
    } }, session, principal, request, n, h("button", { type: "submit" }, _("Show")), h("span", { class: "fill" }), button(_("Verify the chain"), () => verify()));
    show(body, section(_("Audit log"), form, chain, failed, table.element, head));
    let last = null;
    const load = async () => {
        try {
            const list = await get(path("audit"), { n: n.value, session: session.value.trim(), principal: principal.value.trim(), request: request.value.trim() });
            if (signal.aborted)
                return;
            trouble(null);
            last = list.head;
            show(failed, list.cut && info("warn", _("There are more records than are shown.")));
            table.update(list.records.reverse());
            head.textContent = fill(_("Head of the chain: $0"), list.head.split(":")[0] + ":" + list.head.split(":")[1].slice(0, 16) + "…");
            head.title = list.head;
        } catch (failure) {
            if (failure.status === 403) {
                show(body, h("section", { class: "card" }));
                await showTrouble(body.firstChild, failure);
            } else if (failure.status === 400) {
                show(failed, notice(failure));
            } else {
                trouble(failure);
            }
        }
    };
    // The head of an earlier time tells whether the end was cut off since: this browser keeps it.
    const place = "boxd:head:" + socket;
    const verify = async () => {
        show(chain, h("p", { class: "muted" }, _("Reading the whole log…")));
        const noted = localStorage.getItem(place);
        let said = "", data = "";
        try {
            said = await new Promise((resolve, reject) => {
                cockpit.spawn(["boxctl", "audit", "verify", ...(noted ? ["--head", noted] : []), auditDirectory], { superuser: "try", err: "out" })
                    .then(resolve)
                    .catch((err, output) => {
                        data = output ?? ""; // the second argument, which await does not give
                        reject(err);
                    });
            });
            show(chain, h("div", { "data-state": "chain-whole" }, info("ok", _("The chain is whole"), h("pre", { class: "muted" }, said.trim()), h("p", {}, noted ? _("It still has the record that this browser has noted earlier.") : _("This browser notes its head, to find out next time whether the end was cut off.")))));
            if (last)
                localStorage.setItem(place, last);
        } catch (err) {
            const text = err.problem === "not-found" ? _("boxctl is not installed on this host.") : err.problem === "access-denied" || /permission denied/.test(data) ? _("It takes administrative access to read the files.") : null;
            show(chain, h("div", { "data-state": text ? "chain-unknown" : "chain-broken" }, info(text ? "warn" : "fail", text ? _("The chain was not verified") : _("The chain is broken, or could not be read"), h("pre", {}, text ?? (data || err.message)))));
        }
    };
    load();
    return load;
}
