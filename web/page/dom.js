/** Elements made by name, attributes and children. Texts become text nodes; nothing here parses markup. */

import { localTime, NOTHING, plain, utcTime } from "./text.js";

/** @typedef {Node | string | number | null | undefined | false} Child */
/** @typedef {Record<string, any>} Attributes */

/**
 * Return a new element. Attributes of the form `onclick` take listeners, `vars` custom properties of its style;
 * true sets an attribute without a value, false, null and undefined leave it out.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Attributes | null} [attributes]
 * @param {...(Child | Child[])} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function h(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes ?? {})) {
        if (value === null || value === undefined || value === false) continue;
        if (typeof value === "function") {
            element.addEventListener(name.replace(/^on/, ""), value);
        } else if (name === "vars") {
            for (const [variable, text] of Object.entries(value)) {
                element.style.setProperty(`--${variable}`, String(text));
            }
        } else {
            const isShown = name === "title" || name.startsWith("aria-");
            element.setAttribute(name, value === true ? "" : isShown ? plain(String(value)) : String(value));
        }
    }
    element.append(...present(children.flat()));
    return element;
}

/**
 * @param {Child[]} children
 * @returns {(Node | string)[]}
 */
function present(children) {
    return children
        .filter((each) => each !== null && each !== undefined && each !== false)
        .map((each) => (each instanceof Node ? each : plain(String(each))));
}

/**
 * Replace the children of an element.
 * @param {Element} parent
 * @param {...(Child | Child[])} children
 */
export function fill(parent, ...children) {
    parent.replaceChildren(...present(children.flat()));
}

/**
 * Bring the children of an element in line with new ones. Elements stay where they are the same in kind, so that focus,
 * selections and scroll positions survive; so none of them may have listeners.
 * @param {Element} parent
 * @param {...(Child | Child[])} children
 */
export function patch(parent, ...children) {
    align(
        parent,
        present(children.flat()).map((each) =>
            typeof each === "string" ? document.createTextNode(each) : each,
        ),
    );
}

/**
 * @param {Element} parent
 * @param {Node[]} wanted
 */
function align(parent, wanted) {
    wanted.forEach((node, place) => {
        const old = parent.childNodes[place];
        if (!old) {
            parent.append(node);
        } else if (old instanceof Text && node instanceof Text) {
            if (old.data !== node.data) old.data = node.data;
        } else if (
            old instanceof HTMLElement &&
            node instanceof HTMLElement &&
            old.tagName === node.tagName
        ) {
            alignAttributes(old, node);
            align(old, [...node.childNodes]);
        } else {
            old.replaceWith(node);
        }
    });
    while (parent.childNodes.length > wanted.length) parent.lastChild?.remove();
}

/**
 * @param {HTMLElement} old
 * @param {HTMLElement} wanted
 */
function alignAttributes(old, wanted) {
    // The policy of this page forbids style attributes, but not styles that scripts set.
    if (old.style.cssText !== wanted.style.cssText) old.style.cssText = wanted.style.cssText;
    for (const { name } of [...old.attributes]) {
        if (!wanted.hasAttribute(name) && name !== "style" && name !== "open") old.removeAttribute(name);
    }
    for (const { name, value } of wanted.attributes) {
        if (name !== "style" && old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
}

/**
 * Set an element's text, if it is another one, so that a selection in it stays.
 * @param {Element} element
 * @param {string} text
 */
export function setText(element, text) {
    const shown = plain(text);
    if (element.textContent !== shown) element.textContent = shown;
}

/**
 * Return a moment in local time, which shows UTC under the mouse pointer; a dash if there is none.
 * @param {string | null | undefined} moment RFC 3339.
 */
export function time(moment) {
    if (!moment) return h("span", null, NOTHING);
    const date = new Date(moment);
    return h("time", { datetime: moment, title: utcTime(date) }, localTime(date));
}

/**
 * Return a word with its sign, coloured by its kind.
 * @param {string} word
 * @param {string | undefined} sign
 */
export function badge(word, sign) {
    return h(
        "span",
        { class: `badge is-${word.replace(/\W/g, "-")}` },
        sign && h("span", { "aria-hidden": "true" }, `${sign} `),
        word,
    );
}

/**
 * Return a list of facts, each a name and a value; those without a value are left out.
 * @param {[string, Child][]} entries
 */
export function facts(entries) {
    const known = entries.filter(
        ([, value]) => value !== null && value !== undefined && value !== "" && value !== NOTHING,
    );
    return h(
        "dl",
        { class: "facts" },
        known.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))),
    );
}

/**
 * Return a table that scrolls sideways in itself, where it is wider than the page.
 * @param {string} caption
 * @param {(string | { text: string, number: boolean })[]} columns
 * @param {Child[][]} rows
 */
export function table(caption, columns, rows) {
    const numbers = columns.map((each) => typeof each !== "string" && each.number);
    const head = columns.map((each, place) => {
        const text = typeof each === "string" ? each : each.text;
        return h("th", { scope: "col", class: numbers[place] && "number" }, text);
    });
    const body = rows.map((row) =>
        h(
            "tr",
            null,
            row.map((cell, place) => h("td", { class: numbers[place] && "number" }, cell)),
        ),
    );
    return scrolling(
        caption,
        h(
            "table",
            null,
            h("caption", null, caption),
            h("thead", null, h("tr", null, head)),
            h("tbody", null, body),
        ),
    );
}

/**
 * Return a region that scrolls sideways, also by keyboard.
 * @param {string} label
 * @param {Element} content
 */
export function scrolling(label, content) {
    return h("div", { class: "scrolling", role: "region", "aria-label": label, tabindex: "0" }, content);
}

/**
 * Bring the children of an element in line with items: one child for each, in their order, found again by its key.
 * @template Item
 * @param {Element} parent
 * @param {Item[]} items
 * @param {(item: Item) => string} keyOf
 * @param {(item: Item) => Element} create
 * @param {(element: any, item: Item) => void} update
 */
export function reconcile(parent, items, keyOf, create, update) {
    /** @type {Map<string, Element>} */
    const old = new Map();
    for (const child of parent.children) old.set(/** @type {HTMLElement} */ (child).dataset.key ?? "", child);
    let place = parent.firstElementChild;
    for (const item of items) {
        const key = keyOf(item);
        let element = old.get(key);
        if (element === undefined) {
            element = create(item);
            /** @type {HTMLElement} */ (element).dataset.key = key;
        }
        old.delete(key);
        update(element, item);
        if (element === place) place = place.nextElementSibling;
        else parent.insertBefore(element, place);
    }
    for (const each of old.values()) each.remove();
}

/**
 * Tell people who do not see the page of a change.
 * @param {string} text
 */
export function announce(text) {
    const region = document.getElementById("announcements");
    if (region) setText(region, text);
}

/**
 * Return what is wrong, and how to fix it.
 * @param {unknown} error
 */
export function problemBox(error) {
    const { what, fix } = spell(error);
    return h(
        "div",
        { class: "problem", role: "alert" },
        h("p", null, what),
        fix && h("p", { class: "fix" }, h("strong", null, "To fix: "), fix),
    );
}

/**
 * @param {unknown} error
 * @returns {{ what: string, fix: string | null }}
 */
function spell(error) {
    if (error instanceof Error && "what" in error && "fix" in error) {
        return { what: String(error.what), fix: /** @type {string | null} */ (error.fix) };
    }
    return {
        what: `the page failed: ${error instanceof Error ? error.message : String(error)}`,
        fix: "reload it, and report this",
    };
}
