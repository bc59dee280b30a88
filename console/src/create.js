// SPDX-License-Identifier: Apache-2.0
//
// The form that creates a box. While it is filled in, boxd is asked by a dry run what would come of it.

import { get, post, path } from "./boxd.js";
import { h, show } from "./dom.js";
import { _, fill, size, decimal, count } from "./text.js";
import { dialog, field, facts, notice, info, toast } from "./widgets.js";
import { ruleExamples, rulesOf } from "./box-network.js";

const cockpit = window.cockpit;

function select(options, value) {
    return h("select", { value }, options.map(([v, text]) => h("option", { value: v, selected: v === value }, text)));
}

/** createBox opens the form. */
export async function createBox() {
    const [profiles, images] = await Promise.all([get(path("profiles")).catch(() => null), get(path("images")).catch(() => null)]);
    const inputs = {
        id: h("input", { autocomplete: "off", spellcheck: "false", autofocus: true }),
        profile: select([["", profiles ? fill(_("Default ($0)"), profiles.default) : _("Default")], ...Object.keys(profiles?.profiles ?? {}).sort().map((n) => [n, n])], ""),
        image: select([["", _("Of the profile")], ["host", "host"], ...(images?.images ?? []).map((i) => [i.name, i.name])], ""),
        network: select([["", _("Of the profile")], ["off", "off"], ["egress", "egress"], ["host", "host"]], ""),
        memory: h("input", { placeholder: "512MiB" }),
        cpus: h("input", { placeholder: "1.5", inputmode: "decimal" }),
        pids: h("input", { placeholder: "128", inputmode: "numeric" }),
        workspace_quota: h("input", { placeholder: "1GiB" }),
        ttl: h("input", { placeholder: "30m" }),
        network_rules: h("textarea", { rows: 2, spellcheck: "false", placeholder: "pypi.org" }),
    };
    const read = () => {
        const body = {};
        for (const [name, input] of Object.entries(inputs)) {
            const text = input.value.trim();
            if (text === "")
                continue;
            if (name === "network_rules")
                body[name] = rulesOf(text);
            else if (name === "cpus" || name === "pids")
                body[name] = Number.isNaN(Number(text)) ? text : Number(text);
            else
                body[name] = text;
        }
        return body;
    };
    const plan = h("div", { "aria-live": "polite" });
    const mark = (name) => Object.entries(inputs).forEach(([n, i]) => n === name?.replace(/\[.*/, "") ? i.setAttribute("aria-invalid", "true") : i.removeAttribute("aria-invalid"));
    let turn = 0;
    const ask = async () => {
        turn++;
        const mine = turn;
        let answer = null, failure = null;
        try {
            answer = await post(path("sessions"), { ...read(), dry_run: true });
            failure = answer.refused && { message: answer.refused.detail, hint: answer.refused.hint, field: answer.refused.field };
        } catch (err) {
            failure = err;
        }
        if (mine === turn)
            drawPlan(answer, failure);
    };
    const drawPlan = (answer, failure) => {
        mark(failure?.field);
        const s = answer?.session;
        const kept = Object.entries(answer?.enforcement ?? {}).filter(([, by]) => by === "none").map(([what]) => what);
        show(plan,
            failure ? notice(failure) : answer.exists ? info("warn", _("There is such a box already"), h("p", {}, _("Create leads to it, if it has these settings.")))
                : info("ok", _("Allowed"), answer.policy && h("p", {}, fill(_("By the policy $0."), answer.policy))),
            (answer?.clamped ?? []).map((c) => info("warn", fill(_("$0: $1 instead of $2"), c.field, c.got, c.asked), c.by && h("p", { class: "muted" }, c.by))),
            s && !failure && facts([
                [_("Profile"), s.profile], [_("Image"), s.image], [_("Network"), s.network], [_("Memory"), size(s.memory)], [_("CPUs"), decimal(s.cpus)],
                [_("Processes"), count(s.pids)], [_("Workspace"), s.workspace_quota ? size(s.workspace_quota) : _("no limit")], [_("Ends after idle time"), s.ttl], [_("Ends in any case after"), s.max_lifetime],
                [_("Not enforced on this host"), kept.join(", ")],
            ]));
    };
    let timer = null;
    const changed = () => {
        clearTimeout(timer);
        timer = setTimeout(ask, 250);
    };
    const form = h("div", { oninput: changed, onchange: changed },
        h("div", { class: "fields" },
            field(_("Name"), inputs.id, _("Empty: one is made up.")), field(_("Profile"), inputs.profile), field(_("Image"), inputs.image), field(_("Network"), inputs.network),
            field(_("Memory"), inputs.memory), field(_("CPUs"), inputs.cpus), field(_("Processes and threads"), inputs.pids), field(_("Workspace"), inputs.workspace_quota), field(_("Ends after idle time"), inputs.ttl)),
        h("div", { style: "margin-top:.75rem" }, field(_("Network rules"), inputs.network_rules, fill(_("One rule in a line, for example $0. Empty: those of the profile."), ruleExamples))));
    dialog({
        title: _("Create box"), wide: true, submit: _("Create"),
        body: h("div", { class: "two" }, form, h("section", { "aria-label": _("What it would get") }, h("h3", {}, _("What it would get")), plan)),
        onSubmit: async () => {
            const s = await post(path("sessions"), read()).catch((failure) => {
                mark(failure.field);
                throw failure;
            });
            toast(fill(_("$0 is there."), s.id));
            cockpit.location.go(["box", s.owner, s.id]);
        },
    });
    ask();
}
