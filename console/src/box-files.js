// SPDX-License-Identifier: Apache-2.0
//
// Files of a box: looked at, edited, fetched and put there.

import { get, post, request } from "./boxd.js";
import { h, button, show } from "./dom.js";
import { _, fill, size, when, bytesOf } from "./text.js";
import { Table, section, notice, info, confirm, dialog, field, attempt } from "./widgets.js";

// What is larger is not held in the page: boxctl cp takes it.
const mostEdited = 1 << 20, mostMoved = 64 << 20;

/** place names a file for a request: by its bytes, if those are no text. */
function place(f) {
    return f.path_base64 ? { path_base64: f.path_base64 } : { path: f.path };
}

function join(dir, name) {
    return (dir === "/" ? "" : dir) + "/" + name;
}

/** within is what is in a directory, by its own name, with names that are not text kept as bytes. */
function within(dir, entry) {
    const f = { ...entry, name: entry.path, path: join(dir.path, entry.path) };
    if (entry.path_base64 || dir.path_base64) {
        const parts = [dir.path_base64 ? bytesOf(dir.path_base64) : new TextEncoder().encode(dir.path), new TextEncoder().encode("/"), entry.path_base64 ? bytesOf(entry.path_base64) : new TextEncoder().encode(entry.path)];
        f.path_base64 = btoa(parts.map((p) => String.fromCharCode(...p)).join(""));
    } else {
        delete f.path_base64;
    }
    return f;
}

/** filesView shows a directory, beginning with the workspace. */
export function filesView(body, { box, signal }) {
    let dir = { path: "/workspace" };
    const crumbs = h("nav", { class: "crumbs", "aria-label": _("Directory") }), failed = h("div", {}), editor = h("div", {});
    const table = new Table({
        caption: _("Files"), key: (f) => f.path_base64 ?? f.path, size: 200, empty: _("This directory is empty."),
        columns: [
            { title: _("Name"), value: (f) => f.name, order: (f) => (f.type === "directory" ? "0" : "1") + f.name, draw: (f) => [button(f.name + (f.type === "directory" ? "/" : ""), () => open(f), { class: "plain" }), f.target ? h("span", { class: "muted" }, " → ", f.target) : null] },
            { title: _("Type"), value: (f) => f.type, class: "tight" },
            { title: _("Size"), value: (f) => f.type === "file" ? f.size : null, draw: (f) => f.type === "file" ? size(f.size) : "", class: "number" },
            { title: _("Mode"), value: (f) => f.mode, class: "tight mono" },
            { title: _("Owner"), value: (f) => f.user ?? f.uid },
            { title: _("Changed"), value: (f) => f.modified_at, draw: (f) => when(f.modified_at), class: "tight" },
            { title: "", version: (f) => f.path + f.type, draw: (f) => [f.type === "file" && button(_("Download"), () => attempt(() => download(f)), { class: "plain" }),
                button(_("Delete"), () => confirm(fill(_("Delete $0?"), f.name), f.type === "directory" ? _("It and all that is in it are gone then.") : _("It is gone then."), _("Delete"), async () => {
                    await post(box.path("fs", "remove"), { ...place(f), recursive: f.type === "directory" }, box.who);
                    await list();
                }), { class: "plain" })], class: "tight" },
        ],
    });
    table.sort = { column: table.columns[0], up: true };
    const upload = h("input", { type: "file", class: "hidden-text", tabindex: -1, "aria-hidden": true, onchange: () => attempt(async () => {
        const file = upload.files[0];
        upload.value = "";
        if (file.size > mostMoved)
            throw new Error(fill(_("$0 is more than $1. Use boxctl cp for it."), size(file.size), size(mostMoved)));
        await request("PUT", box.path("file"), { params: { ...box.who, ...place(within(dir, { path: file.name })) }, body: new Uint8Array(await file.arrayBuffer()), headers: { "Content-Type": "application/octet-stream" } });
        await list();
    }, _("The file is in the box.")) });
    show(body, section(_("Files"), h("div", { class: "tools" }, crumbs, h("span", { class: "fill" }),
        button(_("Upload"), () => upload.click()), upload, button(_("New file"), () => create("file")), button(_("New directory"), () => create("directory")), button(_("Reload"), () => list())), failed, table.element), editor);

    const go = (to) => {
        dir = to;
        show(editor);
        return list();
    };
    const list = async () => {
        const here = dir;
        const parts = here.path.split("/").filter(Boolean);
        show(crumbs, button("/", () => go({ path: "/" }), { class: "plain" }), parts.map((p, i) => [button(p, () => go({ path: "/" + parts.slice(0, i + 1).join("/") }), { class: "plain", "aria-current": i === parts.length - 1 ? "location" : null }), i < parts.length - 1 ? "/" : ""]));
        try {
            const { entries, truncated } = await post(box.path("fs", "list"), { ...place(here), limit: 5000 }, box.who);
            if (signal.aborted || here !== dir)
                return;
            table.update(entries.map((e) => within(here, e)));
            show(failed, truncated && info("warn", _("There are more files than are shown.")));
        } catch (failure) {
            table.update([]);
            show(failed, notice(failure));
        }
    };
    const open = (f) => {
        if (f.type === "directory" || f.target_type === "directory")
            return go(f);
        return edit(f);
    };
    const download = async (f) => {
        if (f.size > mostMoved)
            throw new Error(fill(_("$0 is more than $1. Use boxctl cp for it."), size(f.size), size(mostMoved)));
        const data = await get(box.path("file"), { ...box.who, ...place(f) }, { binary: true });
        const link = h("a", { href: URL.createObjectURL(new Blob([data], { type: "application/octet-stream" })), download: f.name });
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    };
    const create = (type) => {
        const name = h("input", { autofocus: true, autocomplete: "off", spellcheck: "false" });
        dialog({
            title: type === "file" ? _("New file") : _("New directory"), submit: _("Create"), body: field(_("Name"), name),
            onSubmit: async () => {
                const f = within(dir, { path: name.value });
                await post(box.path("fs", type === "file" ? "write" : "mkdir"), { ...place(f), ...(type === "file" ? { content: "", mode: "create" } : {}) }, box.who);
                await list();
                if (type === "file")
                    await edit(f);
            },
        });
    };
    const edit = async (f) => {
        let content;
        const titled = (...children) => show(editor, section(f.path, children));
        try {
            content = await post(box.path("fs", "read"), { ...place(f), byte_offset: 0, max_bytes: mostEdited, digest: true }, box.who);
        } catch (failure) {
            if (failure.problem?.file?.kind === "binary")
                titled(h("div", { "data-state": "binary" }, info("info", _("This file is not text"), h("p", {}, _("It can be downloaded, and not shown here.")))));
            else
                titled(notice(failure));
            return;
        }
        const text = h("textarea", { class: "editor", spellcheck: "false", "aria-label": fill(_("Content of $0"), f.path), readonly: content.truncated });
        text.value = content.content;
        let digest = content.file.digest;
        const status = h("span", { class: "muted", role: "status" }), problem = h("div", { role: "alert" });
        const save = button(_("Save"), async () => {
            show(problem);
            try {
                const written = await post(box.path("fs", "write"), { ...place(f), content: text.value, if_match: digest }, box.who);
                digest = written.file.digest;
                status.textContent = fill(_("Saved, $0"), size(written.file.size));
                await list();
            } catch (failure) {
                if (failure.status === 409 || failure.problem?.file?.kind === "changed")
                    show(problem, h("div", { "data-state": "conflict" }, info("warn", _("The file has changed meanwhile"), h("p", {}, failure.message), button(_("Read it again"), () => edit(f)))));
                else
                    show(problem, notice(failure));
            }
        }, { class: "primary" });
        titled(content.truncated ? info("warn", fill(_("Only the first $0 are shown, and cannot be changed here."), size(mostEdited))) : h("div", { class: "tools" }, save, status), problem, text);
        text.focus();
    };
    list();
}

