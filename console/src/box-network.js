// SPDX-License-Identifier: Apache-2.0
//
// Network and mounts of a box.

import { get, put, patch, remove, every, lines } from "./boxd.js";
import { h, button, show } from "./dom.js";
import { _, fill, size, count, when } from "./text.js";
import { Table, section, facts, notice, confirm, dialog, field, info } from "./widgets.js";

/** ruleExamples are rules of each kind, for the help of forms. */
export const ruleExamples = "pypi.org, *.example.org tcp 443, 0.0.0.0/0 tcp";

/** rulesOf reads what is in a form: one rule in a line. */
export const rulesOf = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

/** networkView shows where programs may connect to, and what was refused. */
export function networkView(body, { box, events, signal }) {
    const about = h("div", {}), rules = h("div", {});
    const refused = [];
    const table = new Table({
        caption: _("Refused"), key: (e) => e.id, empty: _("Nothing was refused since boxd keeps events."),
        columns: [
            { title: _("Time"), value: (e) => e.time, draw: (e) => when(e.time), class: "tight" },
            { title: _("Layer"), value: (e) => e.reason, class: "tight" },
            { title: _("What"), value: (e) => e.detail },
        ],
    });
    show(body, section(_("Network"), about), section(_("Rules"), rules), section(_("Refused"), table.element));
    const add = (e) => {
        if (e.type !== "denied" || e.session !== box.id || e.owner !== box.owner)
            return;
        refused.unshift(e);
        table.update(refused.slice(0, 500));
    };
    const close = lines("/v1/events", { ...box.who, session: box.id, type: "denied", follow: "false" }, (line) => line.startsWith("data:") && add(JSON.parse(line.slice(5))), () => {});
    signal.addEventListener("abort", close);
    events.addEventListener("event", ({ detail }) => add(detail), { signal });
    table.update([]);

    let drawn = null;
    const draw = () => {
        const s = box.session, t = s.traffic;
        show(about, s.network === "off" ? h("p", {}, _("This box has no network. Its programs reach only each other."))
            : facts([
                [_("Network"), s.network], [_("Addresses"), t?.addresses.join(", ")], [_("Received"), t && size(t.received)], [_("Sent"), t && size(t.sent)], [_("Packets refused"), t && count(t.denied_packets)],
                [_("Connections at a time"), s.network_connections && count(s.network_connections)], [_("Bytes per second"), s.network_bandwidth && size(s.network_bandwidth)],
                [_("Names are checked in connections"), s.network_strict ? _("yes") : _("no")], [_("Secrets"), (s.secrets ?? []).join(", ")],
            ]));
        const now = JSON.stringify([s.network, s.network_rules]);
        if (now === drawn)
            return;
        drawn = now;
        show(rules, s.network !== "egress" ? h("p", { class: "muted" }, _("Rules are for boxes whose network is egress."))
            : [(s.network_rules ?? []).length ? h("ul", { class: "mono" }, s.network_rules.map((r) => h("li", {}, r))) : h("p", {}, _("No rule: names can be looked up, and nothing can be connected to.")),
                button(_("Change rules"), () => change(box))]);
    };
    box.addEventListener("change", draw, { signal });
    draw();
}

function change(box) {
    const text = h("textarea", { rows: 8, autofocus: true, spellcheck: "false" });
    text.value = (box.session.network_rules ?? []).join("\n");
    dialog({
        title: _("Change rules"), submit: _("Change"),
        body: [field(_("Rules, one in a line"), text, fill(_("For example $0. Without a rule names can be looked up, and nothing can be connected to."), ruleExamples)), info("info", _("Connections that the new rules do not allow are cut."))],
        onSubmit: async () => {
            await patch(box.path(), { network_rules: rulesOf(text.value) }, box.who);
            await box.load();
        },
    });
}

/** mountsView shows the host's directories in a box. */
export function mountsView(body, { box, signal }) {
    const failed = h("div", {});
    const table = new Table({
        caption: _("Mounts"), key: (m) => m.target, empty: _("No directory of the host is in this box."),
        columns: [
            { title: _("In the box"), value: (m) => m.target, draw: (m) => h("code", {}, m.target) },
            { title: _("On the host"), value: (m) => m.source, draw: (m) => h("code", {}, m.source) },
            { title: _("Mode"), value: (m) => m.mode, class: "tight" },
            { title: _("Attributes"), value: (m) => (m.attributes ?? []).join(", ") },
            { title: _("Since"), value: (m) => m.since ?? null, draw: (m) => m.since ? when(m.since) : _("its start") },
            { title: "", version: (m) => m.live, draw: (m) => m.live ? button(_("Remove"), () => confirm(fill(_("Remove $0?"), m.target), _("The directory of the host stays as it is."), _("Remove"), async () => {
                await remove(box.path("mounts"), { ...box.who, target: m.target });
                await load();
            })) : null, class: "tight" },
        ],
    });
    show(body, section(_("Mounts"), h("div", { class: "tools" }, button(_("Add a mount"), () => add())), failed, table.element));
    const load = every(10000, async () => {
        try {
            table.update((await get(box.path("mounts"), box.who)).mounts);
            show(failed);
        } catch (failure) {
            show(failed, notice(failure));
        }
    }, signal);
    const add = () => {
        const source = h("input", { autofocus: true, spellcheck: "false", placeholder: "/srv/data" }), target = h("input", { spellcheck: "false", placeholder: "/mnt/data" });
        const mode = h("select", {}, ["ro", "rw"].map((m) => h("option", { value: m }, m)));
        dialog({
            title: _("Add a mount"), submit: _("Add"), body: [field(_("Directory of the host"), source), field(_("Directory in the box"), target), field(_("Mode"), mode)],
            onSubmit: async () => {
                await put(box.path("mounts"), { source: source.value, target: target.value, mode: mode.value }, box.who);
                await load();
            },
        });
    };
}

