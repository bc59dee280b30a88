// SPDX-License-Identifier: Apache-2.0
//
// The console: its pages, and the way between them.

import { Events } from "./boxd.js";
import { h, show } from "./dom.js";
import { _ } from "./text.js";
import { tabs, info } from "./widgets.js";
import { reason, showTrouble } from "./trouble.js";
import { followTheme } from "./theme.js";
import { boxesPage } from "./page-boxes.js";
import { boxPage } from "./page-box.js";
import { hostPage } from "./page-host.js";
import { activityPage } from "./page-activity.js";
import { storagePage } from "./page-storage.js";
import "./style.css";

const cockpit = window.cockpit;

const pages = {
    boxes: { title: () => _("Boxes"), show: boxesPage },
    box: { hidden: true, under: "boxes", show: boxPage },
    host: { title: () => _("Host"), show: hostPage },
    activity: { title: () => _("Activity"), show: activityPage },
    storage: { title: () => _("Storage"), show: storagePage },
};

/** where reads the address: a page and what it is about. */
function where() {
    const [name, ...rest] = cockpit.location.path;
    return pages[name] ? [name, rest] : ["boxes", []];
}

function start() {
    document.documentElement.lang = cockpit.language ?? "en";
    document.documentElement.dir = cockpit.language_direction ?? "ltr";
    document.title = _("Boxes");
    followTheme();

    const nav = h("header", { class: "top" });
    const banner = h("div", { role: "alert" });
    const main = h("main", { id: "main", tabindex: -1 });
    show(document.getElementById("app"), h("a", { href: "#main", class: "skip", onclick: (e) => {
        e.preventDefault();
        main.focus();
    } }, _("Skip to the content")), nav, main);

    let leave = new AbortController();
    const events = new Events();
    events.run(new AbortController().signal, Number(sessionStorage.getItem("boxd:silence")) || undefined); // a test does not wait so long

    const go = (first) => {
        leave.abort();
        document.querySelectorAll("dialog[open]").forEach((d) => d.close());
        leave = new AbortController();
        const { signal } = leave;
        const [name, rest] = where();
        const page = pages[name];
        show(nav, tabs(_("Pages of the console"), Object.entries(pages).filter(([, p]) => !p.hidden).map(([n, p]) => [n, p.title(), "#/" + (n === "boxes" ? "" : n)]), page.under ?? name));
        const body = h("div", { class: "page" });
        const state = h("section", { class: "card", hidden: true });
        show(banner);
        show(main, banner, state, body);

        // trouble shows why the page is not up to date: instead of it where it has shown nothing yet, else above it.
        let shown = false, again = null, failed = null;
        const trouble = async (failure) => {
            if (signal.aborted)
                return;
            failed = failure;
            if (!failure) {
                shown = true;
                state.hidden = true;
                body.hidden = false;
                show(banner);
            } else if (!shown) {
                body.hidden = true;
                state.hidden = false;
                await showTrouble(state, failure, () => again?.());
            } else {
                const s = await reason(failure);
                if (failed === failure && !signal.aborted)
                    show(banner, h("div", { "data-state": s.name }, info("warn", s.title, h("p", {}, s.text, " ", _("What is shown may be old. The console keeps trying.")))));
            }
        };
        again = page.show(body, { events, signal, trouble, rest });
        if (!first) {
            main.focus({ preventScroll: true });
            window.scrollTo(0, 0);
        }
    };
    cockpit.addEventListener("locationchanged", () => go(false));
    go(true);
}

start();
