// SPDX-License-Identifier: Apache-2.0
//
// Elements of the page. Text is always text: nothing here reads HTML.

/** h makes an element: h("a", { href: "#/", class: "name" }, "text", otherElement). Events are on*: functions. */
export function h(tag, props, ...children) {
    const e = document.createElement(tag);
    for (const [name, value] of Object.entries(props ?? {})) {
        if (value === undefined || value === null || value === false)
            continue;
        if (name.startsWith("on"))
            e.addEventListener(name.slice(2), value);
        else if (name === "value" || name === "checked")
            e[name] = value;
        else
            e.setAttribute(name, value === true ? "" : value);
    }
    e.append(...nodes(children));
    return e;
}

function nodes(children) {
    return children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false);
}

/** show makes children the only content of an element. */
export function show(parent, ...children) {
    parent.replaceChildren(...nodes(children));
    return parent;
}

/** button makes a button. */
export function button(label, onclick, props) {
    return h("button", { type: "button", onclick, ...props }, label);
}

let ids = 0;

/** uniqueId is one that no other element has. */
export function uniqueId() {
    ids++;
    return "e" + ids;
}
