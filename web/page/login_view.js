/** Logging in: a token is shown to the server once, which keeps it in a cookie that no script can read. */

import { logIn } from "./api.js";
import { fill, h, problemBox } from "./dom.js";

/**
 * Return the form by which one logs in.
 * @param {() => void} done Called when the token was accepted.
 */
export function loginForm(done) {
    const input = h("input", {
        id: "token",
        name: "token",
        type: "password",
        required: true,
        autocomplete: "off",
        spellcheck: "false",
        "aria-describedby": "token-help",
    });
    const button = h("button", { class: "primary" }, "Log in");
    const outcome = h("div", null);

    async function send(/** @type {Event} */ event) {
        event.preventDefault();
        button.disabled = true;
        fill(outcome);
        try {
            const token = input.value.trim();
            input.value = "";
            await logIn(token);
            done();
        } catch (error) {
            fill(outcome, problemBox(error));
            input.focus();
        } finally {
            button.disabled = false;
        }
    }

    return h(
        "form",
        { class: "login", onsubmit: send },
        h("label", { for: "token" }, "Token"),
        input,
        button,
        outcome,
        h(
            "p",
            { id: "token-help", class: "note" },
            "From ",
            h("code", null, "tiermesh tokens issue"),
            ", or of the file that ",
            h("code", null, "tiermesh web"),
            " names when it starts. It goes into a cookie that ends with the browser, and into no address or storage.",
        ),
    );
}

/**
 * Show the form as a page of its own.
 * @param {HTMLElement} root
 * @param {() => void} done
 */
export function showLogin(root, done) {
    fill(root, h("h1", null, "Log in"), loginForm(done));
    return () => {};
}
