// SPDX-License-Identifier: Apache-2.0
//
// The page of what outlives boxes: images, drives, skills, workspaces.

import { get, post, remove, path } from "./boxd.js";
import { h, button, show } from "./dom.js";
import { _, plural, fill, size, count, when } from "./text.js";
import { Table, section, tabs, bar, confirm, dialog, field, tag, toast } from "./widgets.js";

const kinds = () => [["images", _("Images")], ["workspaces", _("Workspaces")], ["drives", _("Drives")], ["skills", _("Skills")]];

function used(n) {
    return n === 0 ? h("span", { class: "muted" }, _("no box")) : fill(plural("$0 box", "$0 boxes", n), count(n));
}

/** removal is the button that removes something. */
function removal(name, where, params, load, text) {
    return button(_("Remove"), () => confirm(fill(_("Remove $0?"), name), text, _("Remove"), async () => {
        await remove(where, params);
        await load();
    }), { "aria-label": fill(_("Remove $0"), name) });
}

const views = {
    images: {
        about: () => _("What / of a box can be made from. boxctl images pull fetches one, and boxctl images import reads an archive."),
        rows: async () => (await get(path("images"))).images,
        key: (i) => i.name + i.digest,
        empty: () => _("There are no images. Boxes show the programs of the host."),
        tools: (load) => button(_("Remove unused"), () => confirm(_("Remove what no box uses?"), _("Images without a name that no box uses are deleted."), _("Remove"), async () => {
            await post(path("images", "prune"));
            await load();
        })),
        columns: (load) => [
            { title: _("Name"), value: (i) => i.name },
            { title: _("Size"), value: (i) => i.bytes, draw: (i) => size(i.bytes), class: "number" },
            { title: _("Files"), value: (i) => i.entries, draw: (i) => count(i.entries), class: "number" },
            { title: _("Used by"), value: (i) => i.sessions, draw: (i) => used(i.sessions) },
            { title: _("Form"), value: (i) => i.form },
            { title: _("Since"), value: (i) => i.created_at, draw: (i) => when(i.created_at) },
            { title: _("Digest"), value: (i) => i.digest, draw: (i) => h("code", { title: i.digest }, i.digest.slice(0, 19)) },
            { title: "", version: (i) => i.name, draw: (i) => removal(i.name || i.digest.slice(0, 19), path("images", i.name || i.digest), {}, load, _("Boxes that use it keep it.")), class: "tight" },
        ],
    },
    workspaces: {
        about: () => _("Directories with a name that outlive boxes. Several boxes can use one at a time."),
        rows: async () => (await get(path("workspaces"))).workspaces,
        key: (w) => w.owner + "\n" + w.name,
        empty: () => _("There are no named workspaces."),
        tools: (load) => button(_("Create workspace"), () => {
            const name = h("input", { autofocus: true, autocomplete: "off", spellcheck: "false" }), quota = h("input", { placeholder: "2GiB" });
            dialog({
                title: _("Create workspace"), submit: _("Create"), body: [field(_("Name"), name), field(_("Quota"), quota, _("Empty: that of boxes."))],
                onSubmit: async () => {
                    await post(path("workspaces"), { name: name.value.trim(), ...(quota.value.trim() ? { quota: quota.value.trim() } : {}) });
                    await load();
                    toast(fill(_("$0 is there."), name.value.trim()));
                },
            });
        }),
        columns: (load) => [
            { title: _("Name"), value: (w) => w.name },
            { title: _("Owner"), value: (w) => w.owner },
            { title: _("Space"), value: (w) => w.usage?.used ?? w.quota, version: (w) => w.usage?.used + "/" + w.quota, draw: (w) => w.usage ? bar(w.quota ? w.usage.used / w.quota : null, size(w.usage.used) + (w.quota ? " / " + size(w.quota) : ""), _("Space")) : w.quota ? size(w.quota) : _("no limit") },
            { title: _("Used by"), value: (w) => w.sessions.join(", "), draw: (w) => w.sessions.length ? w.sessions.slice(0, 5).join(", ") + (w.sessions.length > 5 ? " …" : "") : used(0) },
            { title: _("Since"), value: (w) => w.created_at, draw: (w) => when(w.created_at) },
            { title: "", version: (w) => w.name, draw: (w) => removal(w.name, path("workspaces", w.name), { owner: w.owner }, load, _("Its files are deleted.")), class: "tight" },
        ],
    },
    drives: {
        about: () => _("Directories with versions that boxes can read. boxctl drives fill makes a version."),
        rows: async () => (await get(path("drives"))).drives,
        key: (d) => d.name,
        empty: () => _("There are no drives."),
        columns: (load) => [
            { title: _("Name"), value: (d) => d.name },
            { title: _("Versions"), value: (d) => d.versions.length, class: "number" },
            { title: _("Newest"), value: (d) => d.versions.at(-1)?.version ?? null, draw: (d) => d.versions.length ? fill(_("$0, $1"), d.versions.at(-1).version, when(d.versions.at(-1).created_at)) : "" },
            { title: _("Size"), value: (d) => d.versions.reduce((n, v) => n + v.bytes, 0), draw: (d) => size(d.versions.reduce((n, v) => n + v.bytes, 0)), class: "number" },
            { title: _("Used by"), value: (d) => d.versions.reduce((n, v) => n + v.sessions, 0), draw: (d) => used(d.versions.reduce((n, v) => n + v.sessions, 0)) },
            { title: "", version: (d) => d.name, draw: (d) => removal(d.name, path("drives", d.name), {}, load, _("All its versions are deleted.")), class: "tight" },
        ],
    },
    skills: {
        about: () => _("Instructions for agents. boxctl skills install takes them from an archive."),
        rows: async () => (await get(path("skills"))).skills,
        key: (k) => k.name,
        empty: () => _("There are no skills."),
        columns: (load) => [
            { title: _("Name"), value: (k) => k.name },
            { title: _("Description"), value: (k) => k.description },
            { title: _("Size"), value: (k) => k.bytes, draw: (k) => size(k.bytes), class: "number" },
            { title: _("Files"), value: (k) => k.entries, class: "number" },
            { title: _("Used by"), value: (k) => k.sessions, draw: (k) => used(k.sessions) },
            { title: _("Changed"), value: (k) => k.updated_at, draw: (k) => k.built_in ? tag(_("of boxd"), "info") : when(k.updated_at) },
            { title: "", version: (k) => k.name + k.built_in, draw: (k) => k.built_in ? null : removal(k.name, path("skills", k.name), {}, load, _("Boxes that have it keep it until they end.")), class: "tight" },
        ],
    },
};

/** storagePage shows one kind of them. */
export function storagePage(root, { signal, trouble, rest }) {
    const kind = views[rest[0]] ? rest[0] : "images", view = views[kind];
    const load = async () => {
        try {
            const rows = await view.rows();
            if (kind === "skills") {
                const { sessions } = await get(path("sessions"));
                rows.forEach((k) => k.sessions = sessions.filter((s) => (s.skills ?? []).some((x) => x.name === k.name)).length);
            }
            if (signal.aborted)
                return;
            trouble(null);
            table.update(rows);
        } catch (failure) {
            trouble(failure);
        }
    };
    const title = kinds().find(([n]) => n === kind)[1], list = view.columns(load);
    const table = new Table({ caption: title, columns: list, key: view.key, empty: view.empty(), sort: { column: list[0], up: true } });
    show(root, h("h1", { class: "hidden-text" }, _("Storage")), tabs(_("Parts of the page"), kinds().map(([n, t]) => [n, t, "#/storage/" + n]), kind),
        section(title, h("div", { class: "tools" }, h("p", { class: "muted" }, view.about()), h("span", { class: "fill" }), view.tools?.(load), button(_("Reload"), load)), table.element));
    load();
    return load;
}
