// SPDX-License-Identifier: Apache-2.0
//
// The page of one box, and what can be done with it.

import { get, post, remove, path, every } from "./boxd.js";
import { h, button, show } from "./dom.js";
import { _, fill, count, span, when } from "./text.js";
import { tabs, facts, info, confirm, attempt, section, tag } from "./widgets.js";
import { state, linkTo, person, timeLeft, memoryBar, cpuBar, pidsBar, diskBar } from "./page-boxes.js";
import { processesView } from "./box-processes.js";
import { filesView } from "./box-files.js";
import { networkView, mountsView } from "./box-network.js";
import { limitsView } from "./box-limits.js";
import { plotsView } from "./box-plots.js";
import { terminalView } from "./box-terminal.js";

const cockpit = window.cockpit;

/** views are the parts of the page, by the last segment of its address. */
const views = [
    ["overview", () => _("Overview"), overview],
    ["processes", () => _("Processes"), processesView],
    ["files", () => _("Files"), filesView],
    ["mounts", () => _("Mounts"), mountsView],
    ["network", () => _("Network"), networkView],
    ["limits", () => _("Limits"), limitsView],
    ["terminal", () => _("Terminal"), terminalView],
];

/** Box is one session as its page knows it. It tells "change" and, once, "ended". */
export class Box extends EventTarget {
    constructor(owner, id) {
        super();
        this.owner = owner;
        this.id = id;
        this.session = null;
        this.ended = null;
    }

    /** path is where something of the session is. */
    path(...more) {
        return path("sessions", this.id, ...more);
    }

    /** who are the parameters that name the owner. */
    get who() {
        return { owner: this.owner };
    }

    async load() {
        try {
            const s = await get(this.path(), this.who);
            const now = performance.now(), before = this.session;
            if (before && s.created_at !== before.created_at)
                return this.end(_("Another box has its name now."));
            if (s.usage && before?.usage) {
                s.cpuShare = now - this.at > 500 ? Math.max(0, (s.usage.cpu_ms - before.usage.cpu_ms) / (now - this.at)) : before.cpuShare;
                if (now - this.at <= 500)
                    s.usage.cpu_ms = before.usage.cpu_ms;
            }
            if (!before || now - this.at > 500)
                this.at = now;
            this.session = s;
            this.dispatchEvent(new CustomEvent("change"));
        } catch (failure) {
            if (failure.status !== 404 || !this.session)
                throw failure;
            this.end(null);
        }
    }

    end(why) {
        if (this.ended !== null)
            return;
        this.ended = why ?? "";
        this.dispatchEvent(new CustomEvent("ended"));
    }
}

const reasons = {
    deleted: () => _("Somebody has removed it."), idle: () => _("Nobody has used it for too long."), lifetime: () => _("Its lifetime was over."),
    evicted: () => _("It made room for another box of its owner."), unhealthy: () => _("It did not answer any more."), lost: () => _("Its first process was gone."),
    stopped_age: () => _("It was stopped for as long as a box may be."), shutdown: () => _("boxd was stopped."),
};

/** boxPage shows the box that rest names: owner, id and view. */
export function boxPage(root, { events, signal, trouble, rest }) {
    const [owner, id, name = "overview"] = rest;
    const box = new Box(owner, id);
    const head = h("div", {});
    const nav = tabs(_("Parts of the box"), views.map(([n, title]) => [n, title(), linkTo(box, n === "overview" ? null : n)]), name);
    const gone = h("div", {});
    const body = h("div", { class: "page" });
    show(root, head, gone, nav, body);

    const act = (method, done) => attempt(async () => {
        await post(box.path(method), {}, box.who);
        await box.load();
    }, done);
    const actions = (s) => [
        s.state === "stopped" ? button(_("Start"), () => act("start", _("The box is started.")), { class: "primary" }) : null,
        s.state === "frozen" ? button(_("Resume"), () => act("thaw", _("Its programs go on."))) : null,
        s.state === "ready" ? button(_("Freeze"), () => act("freeze", _("Its programs are held."))) : null,
        s.state === "ready" ? button(_("Renew"), () => act("renew", _("Its idle time begins anew."))) : null,
        s.state === "stopped" ? null : button(_("Stop"), () => confirm(fill(_("Stop $0?"), s.id), _("Its programs end. Its files stay, and it can be started again."), _("Stop"), async () => {
            await post(box.path("stop"), {}, box.who);
            await box.load();
        })),
        button(_("Remove"), () => confirm(fill(_("Remove $0?"), s.id), _("Its programs end, and its files are deleted."), _("Remove"), async () => {
            await remove(box.path(), box.who);
            cockpit.location.go([]);
        }), { class: "danger" }),
    ];
    let drawn = "";
    const drawHead = () => {
        const s = box.session, now = s.state + (box.ended !== null);
        if (drawn === now)
            return;
        drawn = now;
        show(head, h("div", { class: "head" }, h("nav", { class: "path muted", "aria-label": _("Where you are") }, h("a", { href: "#/" }, _("Boxes")), " › ", person(owner)),
            h("h1", {}, id), box.ended === null ? state(s) : tag(_("ended"), "fail"), h("span", { class: "fill" }), box.ended === null && actions(s)));
    };
    let view = null;
    box.addEventListener("change", () => {
        trouble(null);
        drawHead();
        if (!view) {
            view = (views.find(([n]) => n === name) ?? views[0])[2];
            view(body, { box, events, signal });
        }
    }, { signal });
    let told = null;
    box.addEventListener("ended", () => {
        drawHead();
        show(gone, h("div", { "data-state": "gone", role: "alert" }, info("warn", _("This box has ended"), h("p", {}, told ?? box.ended, " ", _("What is shown is from before.")))));
        body.inert = true;
    }, { signal });
    events.addEventListener("event", ({ detail: e }) => {
        if (e.session !== id || e.owner !== owner)
            return;
        if (e.type === "session.ended") {
            told = reasons[e.reason]?.() ?? e.detail ?? e.reason;
            box.end(told);
        } else if (e.type.startsWith("session.")) {
            load();
        }
    }, { signal });
    const load = every(5000, async () => {
        if (box.ended !== null || signal.aborted)
            return;
        try {
            await box.load();
        } catch (failure) {
            trouble(failure.status === 404 ? Object.assign(failure, { message: _("There is no such box. It may have ended.") }) : failure);
        }
    }, signal);
    return load;
}

/** overview is the first view: what the box is and what it uses. */
function overview(body, { box, events, signal }) {
    const now = h("div", {}), about = h("div", {}), plots = h("div", {});
    show(body, h("div", { class: "cards" }, section(_("Now"), now), section(_("About"), about)), plots);
    const draw = () => {
        const s = box.session, left = timeLeft(s);
        show(now, facts([
            [_("Memory"), memoryBar(s)], [_("CPUs"), cpuBar(s)], [_("Processes"), pidsBar(s)],
            [_("Workspace"), diskBar(s)],
            [_("Programs running"), count(s.running)], [_("Time left"), left === null ? null : span(left)],
            [_("Killed for memory"), s.usage?.oom_kills ? tag(count(s.usage.oom_kills), "fail") : null],
        ]), !s.usage && s.state !== "stopped" && h("p", { class: "muted", "data-state": "no-usage" }, _("This host does not count what boxes use: it has no control groups of version 2.")));
        show(about, facts([
            [_("Profile"), s.profile], [_("Image"), s.image], [_("User"), s.user_name], [_("Network"), s.network], [_("Named workspace"), s.workspace_name],
            [_("Created"), when(s.created_at)], [_("Last used"), when(s.last_used_at)], [_("Programs so far"), count(s.executions)],
            [_("Skills"), (s.skills ?? []).map((k) => k.name).join(", ")], [_("Drives"), (s.drives ?? []).map((d) => d.name + "@" + d.version).join(", ")],
            [_("Environment"), (s.env ?? []).join(", ")], [_("Labels"), Object.entries(s.labels ?? {}).map((l) => l.join("=")).join(", ")],
            [_("Not enforced on this host"), Object.entries(s.enforcement).filter(([, by]) => by === "none").map(([what]) => what).join(", ")],
            [_("Less than asked for"), (s.clamped ?? []).map((c) => fill(_("$0: $1 instead of $2"), c.field, c.got, c.asked)).join("; ")],
        ]));
    };
    box.addEventListener("change", draw, { signal });
    draw();
    plotsView(plots, { box, events, signal });
}

