// SPDX-License-Identifier: Apache-2.0
//
// What a page shows when it cannot show what it is for: each reason has a state of its own.

import { socket } from "./boxd.js";
import { h, button, show } from "./dom.js";
import { _, fill } from "./text.js";

const cockpit = window.cockpit;

/** installed reports whether this host has boxd: its command is there. */
async function installed() {
    try {
        await cockpit.spawn(["boxctl", "--help"], { err: "ignore" });
        return true;
    } catch (err) {
        return err.problem !== "not-found";
    }
}

function state(name, title, text, command, hint) {
    return { name, title, text, command, hint };
}

/** reason tells in which state the page is, by why a request failed. */
export async function reason(failure) {
    const user = await cockpit.user().then((u) => u.name, () => "USER");
    switch (failure.transport ?? "") {
    case "access-denied":
        return state("no-access", _("You may not use boxd"), fill(_("You are $0, and may not open $1."), user, socket), "usermod -aG boxd " + user, _("An administrator can run this. Then log in again."));
    case "not-found":
    case "terminated":
    case "connection-refused":
    case "no-host":
        if (!await installed())
            return state("not-installed", _("boxd is not installed"), _("This host has no boxctl. Install the package boxd, and open this page again."));
        return state("not-running", _("boxd is not running"), fill(_("Nothing answers at $0."), socket), "systemctl start boxd.socket", _("If that does not help, this tells why: journalctl -u boxd.socket -u boxd.service"));
    case "":
        break;
    default:
        return state("unreachable", _("boxd does not answer"), failure.message);
    }
    if (failure.status === 403 || failure.status === 401)
        return state("denied", _("boxd does not let you see this"), failure.message, null, failure.hint);
    if (failure.status === 404 && failure.kind === "")
        return state("not-boxd", _("This is not boxd"), fill(_("Something else answers at $0."), socket));
    return state("failed", _("This cannot be shown"), failure.message, null, failure.hint);
}

/** showTrouble shows the state into which a failure brings a page; again is what tries once more. */
export async function showTrouble(parent, failure, again) {
    const s = await reason(failure);
    show(parent, h("div", { class: "state", "data-state": s.name, role: "alert" },
        h("h2", {}, s.title), h("p", {}, s.text), s.command && h("pre", { class: "command" }, s.command), s.hint && h("p", { class: "muted" }, s.hint),
        again && button(_("Try again"), again, { class: "primary" })));
    return s;
}
