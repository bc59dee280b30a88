// SPDX-License-Identifier: Apache-2.0
//
// A terminal in a box: boxctl runs in a terminal of the host, as the person who is logged in.

import { Terminal } from "@xterm/xterm";
import { FitAddon } from "@xterm/addon-fit";
import "@xterm/xterm/css/xterm.css";
import { socket } from "./boxd.js";
import { h, button, show } from "./dom.js";
import { _, fill } from "./text.js";
import { section } from "./widgets.js";

const cockpit = window.cockpit;

/** terminalView opens a shell in the box. */
export function terminalView(body, { box, signal }) {
    const screen = h("div", { class: "screen" });
    const status = h("span", { class: "muted", role: "status" });
    const again = button(_("Open again"), () => open(), { hidden: true });
    show(body, section(_("Terminal"), h("div", { class: "tools" }, status, again), screen,
        h("p", { class: "muted" }, _("Ctrl+P Ctrl+Q leaves the shell running; boxctl attach returns to it. Ctrl+Shift+Tab leaves the terminal."))));
    const term = new Terminal({ fontFamily: "Console Mono, Liberation Mono, monospace", fontSize: 13, screenReaderMode: true, scrollback: 5000, theme: { background: "#101214" } });
    const fit = new FitAddon();
    term.loadAddon(fit);
    term.open(screen);
    term.attachCustomKeyEventHandler((e) => {
        if (e.type === "keydown" && e.key === "Tab" && e.ctrlKey && e.shiftKey) {
            again.hidden ? body.querySelector("h2").focus() : again.focus();
            document.activeElement?.blur();
            document.getElementById("main").focus();
            return false;
        }
        return true;
    });
    let channel = null;
    const open = () => {
        fit.fit();
        term.reset();
        again.hidden = true;
        status.textContent = _("Connected");
        const mine = cockpit.channel({
            payload: "stream", spawn: ["boxctl", "--socket", socket, "--owner", box.owner, "shell", "--", box.id], environ: ["TERM=xterm-256color"], pty: true, binary: true, err: "out",
            superuser: null, window: { rows: term.rows, cols: term.cols },
        });
        channel = mine;
        mine.addEventListener("message", (_e, data) => term.write(data));
        mine.addEventListener("close", (_e, options) => {
            if (channel !== mine)
                return;
            channel = null;
            again.hidden = false;
            status.textContent = options.problem === "not-found" ? _("boxctl is not installed on this host.")
                : options.problem ? fill(_("The terminal was cut off: $0"), options.problem)
                    : options["exit-signal"] ? fill(_("The shell was ended by a signal: $0"), options["exit-signal"])
                        : fill(_("The shell has ended with exit code $0."), options["exit-status"]);
        });
    };
    const bytes = new TextEncoder();
    term.onData((data) => channel?.send(bytes.encode(data)));
    term.onBinary((data) => channel?.send(Uint8Array.from(data, (c) => c.charCodeAt(0))));
    term.onResize(({ rows, cols }) => channel?.control({ window: { rows, cols } }));
    const resized = new ResizeObserver(() => fit.fit());
    resized.observe(screen);
    signal.addEventListener("abort", () => {
        resized.disconnect();
        channel?.close();
        channel = null;
        term.dispose();
    });
    open();
    term.focus();
}
