// SPDX-License-Identifier: Apache-2.0
//
// The processes of a box, and their output as it comes.

import { get, put, post, remove, lines, every, hidden, onVisibility } from "./boxd.js";
import { h, button, show } from "./dom.js";
import { _, fill, size, when, precise, plain, hasSequences, bytesOf } from "./text.js";
import { Table, tag, section, attempt, dialog, field, confirm, notice } from "./widgets.js";

const levels = { running: "ok", starting: "info", waiting: "warn", stopping: "warn", ended: "" };

/** outcome is what a process has come to, in a few words. */
function outcome(p) {
    if (p.reason)
        return p.reason;
    const r = p.result;
    return !r ? "" : r.status === "exited" ? fill(_("exit code $0"), r.exit_code) : r.status === "signaled" ? r.signal : r.status;
}

/** processesView lists processes; one of them shows its output. */
export function processesView(body, { box, events, signal }) {
    let chosen = null, follow = null, reopen = null, broken = false;
    const place = h("div", {}), failed = h("div", {});
    const act = (p, what, done) => attempt(async () => {
        await what();
        await load();
    }, done);
    const table = new Table({
        caption: _("Processes"), key: (p) => p.id, empty: _("No process has a name. Programs that somebody waits for are not listed."),
        columns: [
            { title: _("Process"), value: (p) => p.id, draw: (p) => button(p.id, () => choose(p.id), { class: "plain", "aria-label": fill(_("Show the output of $0"), p.id) }) },
            { title: _("State"), value: (p) => p.state, draw: (p) => tag(p.state, levels[p.state] ?? ""), class: "tight" },
            { title: _("Command"), value: (p) => p.argv.join(" "), draw: (p) => h("code", {}, p.argv.join(" ").slice(0, 200)) },
            { title: _("Result"), value: outcome },
            { title: _("Starts"), value: (p) => p.starts, class: "number" },
            { title: _("Output"), value: (p) => p.output[0].bytes + p.output[1].bytes, draw: (p) => size(p.output[0].bytes + p.output[1].bytes), class: "number" },
            { title: _("Since"), value: (p) => p.ended_at ?? p.started_at, draw: (p) => when(p.ended_at ?? p.started_at) },
            { title: "", version: (p) => p.state, draw: (p) => p.state === "ended"
                ? button(_("Forget"), () => act(p, () => remove(box.path("processes", p.id), box.who)))
                : button(_("Stop"), () => confirm(fill(_("Stop $0?"), p.id), _("It is asked to end, and killed if it does not."), _("Stop"), async () => {
                    await post(box.path("processes", p.id, "stop"), {}, box.who);
                    await load();
                })), class: "tight" },
        ],
    });
    show(body, failed, section(_("Processes"), h("div", { class: "tools" }, button(_("Start a process"), () => startProcess(box, (id) => {
        load();
        choose(id);
    }))), table.element), place);
    const choose = (id) => {
        follow?.abort();
        follow = new AbortController();
        signal.addEventListener("abort", () => follow.abort());
        chosen = id;
        reopen = showLog(place, box, id, follow.signal);
    };
    const load = every(5000, async () => {
        try {
            const { processes } = await get(box.path("processes"), box.who);
            table.update(processes);
            show(failed);
            if (broken)
                reopen();
            broken = false;
            if (chosen === null && processes.length > 0)
                choose(processes[0].id);
        } catch (failure) {
            // The output of a boxd that was killed ends without a word.
            broken = chosen !== null && failure.transport !== null;
            show(failed, notice(failure));
        }
    }, signal);
    events.addEventListener("event", ({ detail: e }) => e.session === box.id && e.owner === box.owner && e.type.startsWith("process.") && load(), { signal });
    // Nor is one told that boxd was started anew; the stream of events finds it out.
    events.addEventListener("state", (e) => e.detail === null && reopen?.(), { signal });
}

function startProcess(box, started) {
    const id = h("input", { autofocus: true, autocomplete: "off", spellcheck: "false" });
    const command = h("input", { autocomplete: "off", spellcheck: "false", class: "mono" });
    dialog({
        title: _("Start a process"), submit: _("Start"),
        body: [field(_("Name"), id), field(_("Command"), command, _("For the shell of the box. It goes on until it ends or is stopped."))],
        onSubmit: async () => {
            const name = id.value.trim();
            await put(box.path("processes", name), { command: command.value }, box.who);
            started(name);
        },
    });
}

// So many pieces of output are kept in the page; what is older is left out, and that is said.
const kept = 2000;

/** showLog shows the output of a process, and follows it while the page is seen. It returns what goes on with it after a break. */
function showLog(place, box, id, signal) {
    const out = h("pre", { class: "log", tabindex: 0, role: "log", "aria-label": fill(_("Output of $0"), id), "aria-live": "off" });
    const times = h("input", { type: "checkbox", onchange: () => draw() });
    const stream = h("select", { "aria-label": _("Stream"), onchange: () => draw() }, [["", _("Both streams")], ["stdout", "stdout"], ["stderr", "stderr"]].map(([v, t]) => h("option", { value: v }, t)));
    const bottom = h("input", { type: "checkbox", checked: true });
    const about = h("span", { class: "muted", role: "status" });
    show(place, section(fill(_("Output of $0"), id), h("div", { class: "tools" }, stream, h("label", {}, times, _("Times")), h("label", {}, bottom, _("Follow")), about), out));

    const pieces = [], decoders = {}, at = { stdout: 0, stderr: 0 };
    let left = 0, odd = new Set(), close = null;
    const notes = () => {
        about.textContent = [
            odd.has("sequences") && _("Sequences for terminals are left out."), odd.has("bytes") && _("Bytes that are not UTF-8 are shown as �."), left > 0 && _("Older output is left out."),
        ].filter(Boolean).join(" ");
    };
    const line = (p) => p.end ? h("span", { class: "gap" }, _("[the end]") + "\n") : p.gap ? h("span", { class: "gap" }, fill(_("[$0 are not kept]"), size(p.gap)) + "\n")
        : h("span", { class: p.stream }, times.checked ? precise(p.time) + "  " : "", p.text);
    const scroll = () => bottom.checked && (out.scrollTop = out.scrollHeight);
    const wanted = (p) => p.end || !stream.value || p.stream === stream.value;
    let queue = [], frame = null;
    const draw = () => {
        queue = []; // which pieces have too
        show(out, pieces.filter(wanted).map(line));
        scroll();
    };
    const flush = () => {
        frame = null;
        out.append(...queue.filter(wanted).map(line));
        queue = [];
        while (out.childNodes.length > kept) {
            out.firstChild.remove();
            left++;
        }
        if (pieces.length > kept)
            pieces.splice(0, pieces.length - kept);
        notes();
        scroll();
    };
    const append = (p) => {
        pieces.push(p);
        queue.push(p);
        frame ??= requestAnimationFrame(flush);
    };
    const add = (l) => {
        if (l.gap) {
            at[l.stream] = l.offset + l.gap;
        } else {
            let bytes = null;
            if (l.base64) {
                bytes = bytesOf(l.data);
                decoders[l.stream] ??= new TextDecoder("utf-8");
            }
            const raw = bytes ? decoders[l.stream].decode(bytes, { stream: true }) : (decoders[l.stream]?.decode() ?? "") + (l.data ?? "");
            at[l.stream] = l.offset + (bytes ? bytes.length : new TextEncoder().encode(l.data ?? "").length);
            if (raw.includes("\ufffd"))
                odd.add("bytes");
            if (hasSequences(raw))
                odd.add("sequences");
            l.text = plain(raw);
        }
        append(l);
    };
    let begun = false, over = false, timer = null;
    const open = () => {
        close?.();
        clearTimeout(timer);
        const from = begun ? { stdout: at.stdout, stderr: at.stderr } : { tail: 262144 };
        close = lines(box.path("processes", id, "logs"), { ...box.who, follow: "true", format: "ndjson", ...from }, (text) => {
            begun = true;
            if (text)
                add(JSON.parse(text));
        }, (failure) => {
            close = null;
            if (signal.aborted)
                return;
            if (failure && failure.status === 404)
                show(out, h("span", { class: "gap" }, _("This process is not there any more.")));
            else if (failure)
                timer = setTimeout(open, 2000); // boxd was restarted: the output goes on where it was
            else if (!over) {
                over = true;
                append({ end: true });
            }
        });
    };
    signal.addEventListener("abort", () => {
        close?.();
        clearTimeout(timer);
    });
    onVisibility((visible) => {
        if (!visible) {
            close?.();
            close = null;
        } else if (!close && !over) {
            open();
        }
    }, signal);
    if (!hidden())
        open();
    return () => over || signal.aborted || hidden() || open();
}
