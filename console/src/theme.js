// SPDX-License-Identifier: Apache-2.0
//
// Light and dark: as the person has chosen in Cockpit's shell, or as the system is.

/** followTheme sets data-theme of the document, now and whenever the choice changes, and tells listeners of "theme". */
export function followTheme() {
    const system = window.matchMedia("(prefers-color-scheme: dark)");
    const set = (chosen) => {
        const style = chosen ?? localStorage.getItem("shell:style") ?? "auto";
        const theme = style === "dark" || style === "auto" && system.matches ? "dark" : "light";
        if (document.documentElement.dataset.theme === theme)
            return;
        document.documentElement.dataset.theme = theme;
        document.dispatchEvent(new CustomEvent("theme", { detail: theme }));
    };
    system.addEventListener("change", () => set());
    window.addEventListener("storage", (e) => e.key === "shell:style" && set());
    window.addEventListener("cockpit-style", (e) => set(e.detail?.style));
    set();
}

/** color is the value of a variable of the style sheet. */
export function color(name) {
    return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}
