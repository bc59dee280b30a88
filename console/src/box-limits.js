// SPDX-License-Identifier: Apache-2.0
//
// The limits of a box, changed while it runs.

import { patch } from "./boxd.js";
import { h, show } from "./dom.js";
import { _, fill } from "./text.js";
import { section, field, notice, toast, info } from "./widgets.js";

const kinds = () => [
    ["memory", _("Memory"), "size"], ["memory_high", _("Slowed down above"), "size"], ["swap", _("Swap"), "size"], ["cpus", _("CPUs"), "number"], ["cpu_weight", _("Weight for CPU"), "number"],
    ["pids", _("Processes and threads"), "number"], ["io_read", _("Disk read per second"), "size"], ["io_write", _("Disk written per second"), "size"], ["io_weight", _("Weight for disk"), "number"],
    ["workspace_quota", _("Workspace"), "size"], ["workspace_inodes", _("Files in the workspace"), "number"], ["ttl", _("Ends after idle time"), "text"], ["max_lifetime", _("Ends in any case after"), "text"],
];

// What of the enforcement tells about a limit.
const keeper = { memory: "memory", memory_high: "memory", swap: "memory", cpus: "cpu", cpu_weight: "cpu", pids: "pids", io_read: "io", io_write: "io", io_weight: "io", workspace_quota: "workspace", workspace_inodes: "workspace" };

// Where 0 is no limit.
const unlimited = ["memory_high", "io_read", "io_write"];

/** written is a size as requests take it, without loss. */
function written(bytes) {
    for (const [unit, n] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]])
        if (bytes > 0 && bytes % n === 0)
            return bytes / n + unit;
    return String(bytes);
}

/** limitsView is a form with what the box has; only what is changed is sent. */
export function limitsView(body, { box }) {
    const s = box.session, problem = h("div", { role: "alert" }), inputs = {}, before = {};
    const value = (name, kind) => kind === "size" ? written(box.session[name] ?? 0) : String(box.session[name] ?? "");
    const fields = kinds().map(([name, label, kind]) => {
        const by = s.enforcement[keeper[name]];
        before[name] = value(name, kind);
        inputs[name] = h("input", { value: before[name], autocomplete: "off", spellcheck: "false" });
        return field(label, inputs[name], [unlimited.includes(name) ? _("0: no limit.") : null, by === "none" ? _("Not enforced on this host") : by ? fill(_("Enforced by $0"), by) : null].filter(Boolean).join(" "));
    });
    const form = h("form", { onsubmit: async (e) => {
        e.preventDefault();
        const changes = {};
        for (const [name, , kind] of kinds()) {
            const text = inputs[name].value.trim();
            inputs[name].removeAttribute("aria-invalid");
            if (text !== before[name])
                changes[name] = kind === "number" && !Number.isNaN(Number(text)) ? Number(text) : text;
        }
        show(problem);
        if (Object.keys(changes).length === 0)
            return;
        try {
            await patch(box.path(), changes, box.who);
            await box.load();
            for (const [name, , kind] of kinds())
                inputs[name].value = before[name] = value(name, kind);
            toast(_("The limits hold now."));
        } catch (failure) {
            inputs[failure.field]?.setAttribute("aria-invalid", "true");
            inputs[failure.field]?.focus();
            show(problem, notice(failure));
        }
    } }, h("div", { class: "fields" }, fields), problem, h("div", { class: "tools", style: "margin:1rem 0 0" }, h("button", { type: "submit", class: "primary" }, _("Change"))));
    show(body, section(_("Limits"), form), s.clamped?.length ? section(_("Less than asked for"), s.clamped.map((c) => info("warn", fill(_("$0: $1 instead of $2"), c.field, c.got, c.asked), h("p", { class: "muted" }, c.by)))) : null);
}
