/** Several jobs beside each other: their curves on common axes, and the settings that differ. */

import { job as getJob, jobConfig, jobs as getJobs, metrics } from "./api.js";
import { badge, fill, h, problemBox, table } from "./dom.js";
import { readHistory } from "./history.js";
import { Curves } from "./job_curves.js";
import { repeat } from "./refresh.js";
import { differingSettings } from "./settings.js";
import { loss, number, settingText, share, shortId, whole } from "./text.js";
import { jobState, jobTitle, SIGNS } from "./words.js";

/** @typedef {import("./api.js").Job} Job */
/** @typedef {import("./api.js").JobConfig} JobConfig */
/** @typedef {import("./main.js").Shell} Shell */
/** @typedef {{ id: string, job: Job, config: JobConfig | null }} Compared */

const MOST_COMPARED = 8;
const POINTS = 500;
const REFRESH_COMPARED_SECONDS = 10;
const OFFERED_JOBS = 100;

/**
 * @param {HTMLElement} root
 * @param {Shell} shell
 * @param {string[]} ids
 */
export function showCompare(root, shell, ids) {
    const leaving = new AbortController();
    const { signal } = leaving;
    const chosen = ids.slice(0, MOST_COMPARED);
    /** @type {Compared[]} */
    let compared = [];
    /** @type {{ stop: () => void } | null} */
    let refreshing = null;
    const list = h("ul", { class: "chosen-jobs" });
    const summary = h("div", null);
    const settings = h("div", null);
    const problems = h("div", null);
    const offers = h("datalist", { id: "offers" });
    const input = h("input", {
        id: "add",
        name: "job",
        list: "offers",
        maxlength: 200,
        autocomplete: "off",
        required: true,
    });
    const add = h(
        "form",
        {
            class: "bar",
            onsubmit: (/** @type {Event} */ event) => {
                event.preventDefault();
                go([...chosen, input.value.trim()]);
            },
        },
        h("label", { for: "add" }, "Add a job, by its id"),
        input,
        offers,
        h("button", { disabled: chosen.length >= MOST_COMPARED }, "Add"),
    );
    const curves = new Curves({ zoom: () => draw() });

    fill(
        root,
        h("h1", null, "Compare"),
        list,
        add,
        problems,
        summary,
        h(
            "section",
            { "aria-labelledby": "curves-title", hidden: chosen.length === 0 },
            h("h2", { id: "curves-title" }, "Curves"),
            curves.root,
        ),
        h(
            "section",
            { "aria-labelledby": "settings-title", hidden: chosen.length === 0 },
            h("h2", { id: "settings-title" }, "Settings that differ"),
            settings,
        ),
    );

    /** @param {string[]} jobs */
    function go(jobs) {
        location.hash = `#/compare?jobs=${[...new Set(jobs)].map(encodeURIComponent).join(",")}`;
    }

    async function begin() {
        offer();
        if (!chosen.length) fill(problems, h("p", null, "Choose jobs here, or in the list of jobs."));
        const results = await Promise.allSettled(
            chosen.map(async (id) => {
                const job = await getJob(id, signal);
                const config = await jobConfig(id, signal).catch(() => null);
                return { id, job, config };
            }),
        );
        if (signal.aborted) return;
        compared = results.flatMap((each) => (each.status === "fulfilled" ? [each.value] : []));
        const failures = results.flatMap((each) =>
            each.status === "rejected" ? [problemBox(each.reason)] : [],
        );
        if (chosen.length) fill(problems, failures);
        fill(
            list,
            chosen.map((id) => {
                const job = compared.find((each) => each.id === id)?.job;
                return h(
                    "li",
                    null,
                    h("a", { href: `#/jobs/${encodeURIComponent(id)}` }, job ? jobTitle(job) : shortId(id)),
                    " ",
                    h(
                        "button",
                        {
                            type: "button",
                            "aria-label": `Remove ${job ? jobTitle(job) : id}`,
                            onclick: () => go(chosen.filter((each) => each !== id)),
                        },
                        "Remove",
                    ),
                );
            }),
        );
        drawSummary();
        drawSettings();
        await draw();
        if (compared.some(({ job }) => job.state === "running")) {
            refreshing = repeat(async () => {
                if (!curves.zoom) await draw();
            }, REFRESH_COMPARED_SECONDS);
        }
    }

    async function offer() {
        try {
            const page = await getJobs({ limit: OFFERED_JOBS }, signal);
            fill(
                offers,
                page.jobs.map((each) =>
                    h("option", { value: each.job, label: `${each.name}, ${each.state}` }),
                ),
            );
        } catch (error) {
            if (!signal.aborted) shell.report(error);
        }
    }

    async function draw() {
        try {
            const zoom = curves.zoom;
            const runs = await Promise.all(
                compared.map(async ({ job, config }) => {
                    const history = readHistory(
                        await metrics(job.job, { points: POINTS, from: zoom?.first, to: zoom?.last }, signal),
                    );
                    const tokens = config?.takes?.tokens_per_step;
                    return {
                        label: jobTitle(job),
                        history,
                        tokensPerStep: typeof tokens === "number" ? tokens : null,
                    };
                }),
            );
            if (runs.length) curves.set(runs, []);
            shell.report(null);
        } catch (error) {
            if (!signal.aborted) shell.report(error);
        }
    }

    function drawSummary() {
        if (!compared.length) return;
        const rows = compared.map(({ job }) => {
            const state = jobState(job);
            return [
                jobTitle(job),
                badge(state, SIGNS[state]),
                `${whole(job.step)} of ${whole(job.steps)}`,
                loss(job.loss),
                loss(job.validation_loss),
                number(job.tokens_per_second || null),
                share(job.mfu),
                share(job.efficiency),
            ];
        });
        const numeric = ["step", "loss", "validation loss", "tokens/s", "MFU", "efficiency"].map((text) => ({
            text,
            number: true,
        }));
        fill(summary, h("section", null, table("The jobs", ["job", "state", ...numeric], rows)));
    }

    function drawSettings() {
        const known = compared.filter((each) => each.config !== null);
        const unknown = compared.filter((each) => each.config === null);
        const rows = differingSettings(known.map((each) => each.config?.settings ?? {}));
        const note =
            unknown.length > 0 &&
            h(
                "p",
                { class: "note" },
                `The settings of ${unknown.map((each) => jobTitle(each.job)).join(", ")} can't be had.`,
            );
        if (known.length < 2) fill(settings, h("p", null, "It takes two jobs to differ."), note);
        else if (!rows.length) fill(settings, h("p", null, "None: these jobs have the same settings."), note);
        else
            fill(
                settings,
                table(
                    "Settings that differ",
                    ["key", ...known.map((each) => jobTitle(each.job))],
                    rows.map((row) => [h("code", null, row.key), ...row.values.map(settingText)]),
                ),
                note,
            );
    }

    begin();
    return () => {
        leaving.abort();
        refreshing?.stop();
        curves.destroy();
    };
}
