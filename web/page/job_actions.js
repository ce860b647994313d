/** What one does with jobs: cancel, pause, resume, priority, continue; one or several at once, asked for in dialogs. */

import { change, Problem } from "./api.js";
import { announce, fill, h, problemBox } from "./dom.js";
import { counted } from "./text.js";
import { allowedActions, jobTitle } from "./words.js";

/** @typedef {import("./api.js").Job} Job */
/** @typedef {"cancel" | "pause" | "resume" | "priority" | "continue"} Action */

const MOST_PRIORITY = 100;
/** @type {Record<Action, { word: string, done: string }>} */
export const ACTIONS = {
    pause: { word: "Pause", done: "paused" },
    resume: { word: "Resume", done: "resumed" },
    priority: { word: "Priority", done: "given the priority" },
    continue: { word: "Continue", done: "continued" },
    cancel: { word: "Cancel", done: "cancelled" },
};

/**
 * Carry out an action for jobs, after a question where it has settings or can't be taken back.
 * @param {Action} action
 * @param {Job[]} jobs
 * @param {(changed: Job[]) => void} done Takes the jobs as they are afterwards.
 */
export function act(action, jobs, done) {
    const fitting = jobs.filter((each) => allowedActions(each)[action]);
    if (!fitting.length) return;
    if (action === "cancel") askCancel(fitting, done);
    else if (action === "priority") askPriority(fitting, done);
    else if (action === "continue") askContinue(fitting[0], done);
    else carryOut(action, fitting, () => ({}), done);
}

/**
 * Change jobs one after the other. What is refused is told of by job, and the others are changed all the same.
 * @param {Action} action
 * @param {Job[]} jobs
 * @param {(job: Job) => Record<string, unknown>} bodyOf
 * @param {(changed: Job[]) => void} done
 */
async function carryOut(action, jobs, bodyOf, done) {
    /** @type {Job[]} */
    const changed = [];
    /** @type {{ job: Job, error: unknown }[]} */
    const failures = [];
    for (const job of jobs) {
        try {
            changed.push(await change(job.job, action, bodyOf(job)));
        } catch (error) {
            failures.push({ job, error });
            if (error instanceof Problem && [0, 401, 503].includes(error.status)) break; // the next would fail, too
        }
    }
    if (changed.length) announce(`${counted(changed.length, "job")} ${ACTIONS[action].done}`);
    done(changed);
    if (!failures.length) return;
    const dialog = openDialog(`${ACTIONS[action].word}: refused`, [
        changed.length > 0 && h("p", null, `${counted(changed.length, "job")} ${ACTIONS[action].done}.`),
        ...failures.map((each) =>
            h("section", null, h("h3", null, jobTitle(each.job)), problemBox(each.error)),
        ),
        h(
            "div",
            { class: "bar end" },
            h(
                "button",
                { type: "button", class: "primary", autofocus: true, onclick: () => dialog.close() },
                "Close",
            ),
        ),
    ]);
}

/**
 * @param {string} title
 * @param {import("./dom.js").Child[]} content
 */
export function openDialog(title, content) {
    const dialog = h(
        "dialog",
        { "aria-label": title, onclose: () => dialog.remove() },
        h("h2", null, title),
        content,
    );
    document.body.append(dialog);
    dialog.showModal();
    return dialog;
}

/**
 * Ask something by a form in a dialog.
 * @param {string} title
 * @param {import("./dom.js").Child[]} content
 * @param {string} word Word of the button that goes on.
 * @param {() => void} goOn
 */
function ask(title, content, word, goOn) {
    const dialog = openDialog(title, [
        h(
            "form",
            { method: "dialog", onsubmit: goOn },
            content,
            h(
                "div",
                { class: "bar end" },
                h("button", { type: "button", onclick: () => dialog.close() }, "Back"),
                h(
                    "button",
                    { class: title.startsWith(ACTIONS.cancel.word) ? "primary danger" : "primary" },
                    word,
                ),
            ),
        ),
    ]);
}

/** @param {Job[]} jobs */
function names(jobs) {
    const shown = jobs.slice(0, 10).map((each) => h("li", null, jobTitle(each)));
    return h(
        "ul",
        null,
        shown,
        jobs.length > 10 && h("li", null, `and ${counted(jobs.length - 10, "other")}`),
    );
}

/** @param {Job[]} jobs @param {(changed: Job[]) => void} done */
function askCancel(jobs, done) {
    const now = h("input", { type: "checkbox", name: "now" });
    ask(
        `Cancel ${counted(jobs.length, "job")}?`,
        [
            names(jobs),
            h(
                "p",
                null,
                "A running job stops after its step, with a checkpoint from which it can be continued.",
            ),
            h("label", { class: "check" }, now, " Stop at once, without a checkpoint of its last step"),
        ],
        jobs.length === 1 ? "Cancel the job" : `Cancel ${jobs.length} jobs`,
        () => carryOut("cancel", jobs, () => ({ now: now.checked }), done),
    );
}

/** @param {Job[]} jobs @param {(changed: Job[]) => void} done */
function askPriority(jobs, done) {
    const input = h("input", {
        id: "priority",
        type: "number",
        name: "priority",
        min: -MOST_PRIORITY,
        max: MOST_PRIORITY,
        step: 1,
        required: true,
        value: jobs[0].priority,
    });
    ask(
        `Priority of ${counted(jobs.length, "job")}`,
        [
            names(jobs),
            h(
                "p",
                { id: "priority-help" },
                "Jobs of a higher priority come first in the queue, then older ones. Above 0 only admins may give it.",
            ),
            h("label", { for: "priority" }, `Priority, ${-MOST_PRIORITY} to ${MOST_PRIORITY}`),
            input,
        ],
        "Set priority",
        () => carryOut("priority", jobs, () => ({ priority: Number(input.value) }), done),
    );
}

/** @param {Job} job @param {(changed: Job[]) => void} done */
function askContinue(job, done) {
    const steps = h("input", {
        id: "steps",
        type: "number",
        name: "steps",
        min: 1,
        step: 1,
        required: true,
        value: Math.max(job.steps, 1),
    });
    const from = h("input", {
        id: "from",
        type: "number",
        name: "from",
        min: 0,
        step: 1,
        placeholder: String(job.checkpoint_step ?? ""),
    });
    const total = h("input", { id: "total", type: "number", name: "total", min: 1, step: 1 });
    const requestId = newRequestId();
    ask(
        `Continue ${jobTitle(job)}`,
        [
            h("p", null, "A new job begins at a checkpoint of this one, with its settings."),
            h("label", { for: "steps" }, "Updates to make in all"),
            steps,
            h("label", { for: "from" }, "Checkpoint of step (empty: the newest)"),
            from,
            h("label", { for: "total" }, "End of the learning rate's schedule (empty: as before)"),
            total,
        ],
        "Continue",
        () =>
            carryOut(
                "continue",
                [job],
                () => ({
                    steps: Number(steps.value),
                    step: from.value ? Number(from.value) : null,
                    total_steps: total.value ? Number(total.value) : null,
                    request_id: requestId,
                }),
                done,
            ),
    );
}

/** Return an id that makes a repeated request yield the same job. */
export function newRequestId() {
    return Array.from(crypto.getRandomValues(new Uint8Array(16)), (each) =>
        each.toString(16).padStart(2, "0"),
    ).join("");
}

/**
 * Return the buttons of a job's actions.
 * @param {() => Job[]} jobs Returns the jobs that they are for.
 * @param {(action: Action, changed: Job[]) => void} done
 */
export function actionButtons(jobs, done) {
    const buttons = /** @type {Action[]} */ (Object.keys(ACTIONS)).map((action) =>
        h(
            "button",
            {
                type: "button",
                "data-action": action,
                class: action === "cancel" && "danger",
                onclick: () => act(action, jobs(), (changed) => done(action, changed)),
            },
            ACTIONS[action].word,
        ),
    );
    const bar = h("div", { class: "bar", role: "group", "aria-label": "Actions" }, buttons);
    /** Enable the actions that at least one job allows; several can't be continued at once. */
    function update() {
        const chosen = jobs();
        for (const button of buttons) {
            const action = /** @type {Action} */ (button.dataset.action);
            button.disabled =
                !chosen.some((each) => allowedActions(each)[action]) ||
                (action === "continue" && chosen.length > 1);
        }
    }

    update();
    return {
        root: bar,
        update,
        /** @param {import("./dom.js").Child[]} more */
        add(...more) {
            fill(bar, buttons, more);
        },
    };
}
