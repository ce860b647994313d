/** Submitting a job: YAML that is checked as one types, with what it will take; clones; files that are missing here. */

import { check, jobConfig, Problem, putFile, submit } from "./api.js";
import { announce, fill, h, patch, problemBox, setText } from "./dom.js";
import { newRequestId } from "./job_actions.js";
import { lineOfSetting } from "./settings.js";
import { takesList } from "./takes.js";
import { bytes, shortId } from "./text.js";

/** @typedef {import("./main.js").Shell} Shell */
/** @typedef {import("./api.js").MissingFile} MissingFile */

const TYPING_MILLISECONDS = 400;
const MOST_CONFIG_CHARACTERS = 900_000;
/** A file is hashed in memory, as browsers can't hash one piece by piece. */
const MOST_FILE_BYTES = 1 << 30;
const DRAFT = "tiermesh draft";
const EXAMPLE = `training_config:
  project_name: demo
  model_config: model_configs/nanogpt_char_cpu.yaml
  multihost_config: multihost_configs/2worker_grpc.yaml
  data_path: builtin:python-reference
  tokenizer_type: char
  batch_size: 12
  max_steps: 500
  eval_every: 250
  model_save_interval: 250
  optimizer:
    type: AdamW
    lr: 5.0e-3

device_config:
  mesh_shape: [1, 1]
`;

/** @typedef {{ config: string, overrides: Record<string, unknown>, files: Record<string, string>,
 *     code: import("./api.js").Code | null, from: string | null }} Draft */

/** @returns {Draft | null} */
function storedDraft() {
    try {
        const draft = JSON.parse(sessionStorage.getItem(DRAFT) ?? "null");
        return draft && typeof draft.config === "string" && draft.config
            ? { overrides: {}, files: {}, code: null, from: null, ...draft }
            : null;
    } catch {
        return null;
    }
}

/** @param {Draft} draft */
function storeDraft(draft) {
    try {
        sessionStorage.setItem(DRAFT, JSON.stringify(draft));
    } catch {
        // A draft that a full storage does not take is lost with the tab, as if it had never been stored.
    }
}

/**
 * @param {HTMLElement} root
 * @param {Shell} shell
 * @param {string | null} cloned Job whose settings are the beginning.
 */
export function showSubmit(root, shell, cloned) {
    /** @type {Draft} */
    let draft = storedDraft() ?? { config: EXAMPLE, overrides: {}, files: {}, code: null, from: null };
    let requestId = newRequestId();
    let accepted = false;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let typing;
    /** @type {AbortController | null} */
    let checking = null;
    const leaving = new AbortController();

    const text = h("textarea", {
        id: "config",
        name: "config",
        rows: 28,
        spellcheck: "false",
        autocomplete: "off",
        maxlength: MOST_CONFIG_CHARACTERS,
        "aria-describedby": "verdict",
        oninput: typed,
    });
    const name = h("input", {
        id: "job-name",
        name: "name",
        maxlength: 200,
        autocomplete: "off",
        oninput: typed,
    });
    const verdict = h("p", { id: "verdict", class: "verdict", "aria-live": "polite" });
    const problem = h("div", null);
    const missing = h("div", null);
    const notices = h("ul", { class: "notices" });
    const takes = h("div", null);
    const origin = h("p", { class: "note" });
    const button = h("button", { class: "primary", type: "button", disabled: true, onclick: send }, "Submit");
    const example = h(
        "button",
        {
            type: "button",
            onclick: () => use({ config: EXAMPLE, overrides: {}, files: {}, code: null, from: null }),
        },
        "Start from the example",
    );

    fill(
        root,
        h("h1", null, "Submit a job"),
        origin,
        h(
            "div",
            { class: "columns submit" },
            h(
                "section",
                { "aria-label": "Config" },
                h(
                    "div",
                    { class: "bar" },
                    h("label", { for: "job-name" }, "Name (empty: the config's)"),
                    name,
                ),
                h("label", { for: "config" }, "Config of the job, YAML"),
                text,
                h("div", { class: "bar" }, button, example),
            ),
            h(
                "section",
                { "aria-labelledby": "check-title" },
                h("h2", { id: "check-title" }, "Check"),
                verdict,
                problem,
                missing,
                notices,
                takes,
            ),
        ),
    );

    /** @param {Draft} chosen */
    function use(chosen) {
        draft = chosen;
        text.value = chosen.config;
        const count = Object.keys(chosen.overrides).length;
        setText(
            origin,
            chosen.from
                ? `A clone of job ${shortId(chosen.from)}${count ? `, with ${count} overrides of its submission` : ""}. The earlier job stays as it is.`
                : "",
        );
        look();
    }

    function typed() {
        draft.config = text.value;
        storeDraft(draft);
        requestId = newRequestId();
        setAccepted(false, "checking …");
        clearTimeout(typing);
        typing = setTimeout(look, TYPING_MILLISECONDS);
    }

    /** @param {boolean} value @param {string} word */
    function setAccepted(value, word) {
        accepted = value;
        button.disabled = !value;
        text.setAttribute("aria-invalid", String(!value && word === "refused"));
        setText(verdict, word);
        verdict.dataset.kind = word === "refused" ? "bad" : value ? "good" : "open";
    }

    function submission() {
        const { config, overrides, files, code } = draft;
        return { config, overrides, files, name: name.value.trim(), ...(code ? { code } : {}) };
    }

    async function look() {
        clearTimeout(typing);
        checking?.abort();
        const controller = new AbortController();
        checking = controller;
        if (!draft.config.trim()) {
            setAccepted(false, "nothing to check yet");
            return;
        }
        try {
            const found = await check(submission(), controller.signal);
            fill(problem);
            fill(missing);
            patch(
                notices,
                found.notices.map((each) => h("li", null, each)),
            );
            patch(takes, takesList(found.takes));
            setAccepted(true, "valid");
            shell.report(null);
        } catch (error) {
            if (controller.signal.aborted) return;
            refuse(error);
        }
    }

    /** @param {unknown} error */
    function refuse(error) {
        const isMissing = error instanceof Problem && error.type === "missing-file";
        const isRefusal =
            error instanceof Problem &&
            error.status >= 400 &&
            error.status < 500 &&
            error.status !== 401 &&
            error.status !== 429;
        setAccepted(false, isMissing ? "a file is missing" : isRefusal ? "refused" : "could not be checked");
        fill(
            problem,
            !isMissing && problemBox(error),
            !isMissing && goToField(error),
            !isRefusal && h("button", { type: "button", onclick: look }, "Check again"),
        );
        fill(missing, isMissing && error.missing.map(fileRow));
        fill(notices);
        fill(takes);
    }

    /** @param {unknown} error */
    function goToField(error) {
        const field = error instanceof Problem ? error.field : null;
        const line = field && lineOfSetting(draft.config, field);
        if (!line) return null;
        return h(
            "button",
            {
                type: "button",
                onclick: () => {
                    const lines = draft.config.split("\n");
                    const start = lines.slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0);
                    text.focus();
                    text.setSelectionRange(start, start + lines[line - 1].length);
                },
            },
            `Go to line ${line}`,
        );
    }

    /** @param {MissingFile} file */
    function fileRow(file) {
        const status = h("p", { class: "note", "aria-live": "polite" });
        const outcome = h("div", null);
        const input = h("input", {
            type: "file",
            "aria-label": `File for ${file.path}`,
            onchange: () => {
                const chosen = input.files?.[0];
                if (chosen) upload(file, chosen, status, outcome);
            },
        });
        return h(
            "div",
            { class: "missing" },
            h(
                "p",
                null,
                "The config names ",
                h("code", null, file.path),
                ", which is not here. Choose that file to send it:",
            ),
            input,
            status,
            outcome,
        );
    }

    /**
     * @param {MissingFile} file
     * @param {File} chosen
     * @param {HTMLElement} status
     * @param {HTMLElement} outcome
     */
    async function upload(file, chosen, status, outcome) {
        fill(outcome);
        try {
            const sha256 = await hash(chosen, status);
            if (leaving.signal.aborted) return;
            const isOther = file.sha256 !== null && file.sha256 !== sha256;
            setText(status, `sending ${bytes(chosen.size)} …`);
            await putFile(sha256, chosen);
            draft.files = { ...draft.files, [file.path]: sha256 };
            storeDraft(draft);
            announce(
                `${file.path} was sent${isOther ? "; it is another file than the earlier job had" : ""}`,
            );
            setText(
                origin,
                isOther
                    ? `${file.path} is another file now than the earlier job had.`
                    : (origin.textContent ?? ""),
            );
            await look();
        } catch (error) {
            setText(status, "");
            fill(outcome, problemBox(error));
        }
    }

    async function send() {
        if (!accepted) return;
        button.disabled = true;
        setText(verdict, "submitting …");
        try {
            const { job } = await submit({ ...submission(), request_id: requestId });
            sessionStorage.removeItem(DRAFT);
            announce(`job ${job.job} was submitted`);
            location.hash = `#/jobs/${encodeURIComponent(job.job)}`;
        } catch (error) {
            refuse(error);
            // A repetition with the same id yields the same job, so it is safe after an answer that did not come.
            if (!(error instanceof Problem) || error.status === 0 || error.status >= 429)
                setAccepted(true, "not submitted yet: try again");
        }
    }

    async function begin() {
        if (!cloned) {
            use(draft);
            return;
        }
        try {
            const found = await jobConfig(cloned, leaving.signal);
            use({
                config: found.config,
                overrides: found.overrides ?? {},
                files: found.files ?? {},
                code: found.code ?? null,
                from: cloned,
            });
        } catch (error) {
            if (!leaving.signal.aborted) fill(problem, problemBox(error));
        }
    }

    begin();
    return () => {
        clearTimeout(typing);
        checking?.abort();
        leaving.abort();
    };
}

/**
 * Return a file's SHA-256.
 * @param {File} file
 * @param {HTMLElement} status
 */
async function hash(file, status) {
    if (file.size > MOST_FILE_BYTES) {
        throw new Problem({
            detail: `${file.name}: ${bytes(file.size)} given, expected at most ${bytes(MOST_FILE_BYTES)} from a browser; submit the job with tiermesh submit`,
            fix: "submit the job with tiermesh submit",
        });
    }
    if (!crypto.subtle) {
        throw new Problem({
            detail: "this browser computes no SHA-256 here, expected https, or localhost; open the page over https",
            fix: "open the page over https",
        });
    }
    setText(status, `computing the SHA-256 of ${bytes(file.size)} …`);
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", await file.arrayBuffer()));
    return Array.from(digest, (each) => each.toString(16).padStart(2, "0")).join("");
}
