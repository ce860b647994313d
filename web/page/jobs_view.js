/** The jobs: the queue in its order, and those that have ended; actions for several at once; a page at a time. */

import { jobs as getJobs } from "./api.js";
import { badge, fill, h, patch, reconcile, setText, time } from "./dom.js";
import { actionButtons } from "./job_actions.js";
import { repeat } from "./refresh.js";
import { counted, duration, loss, share, shortId, whole } from "./text.js";
import {
    ENDED_STATES,
    jobPhase,
    jobReason,
    jobStart,
    jobState,
    LIVE_STATES,
    SIGNS,
    workersWanted,
} from "./words.js";

/** @typedef {import("./api.js").Job} Job */
/** @typedef {import("./main.js").Shell} Shell */

const PAGE_JOBS = 100;
const TYPING_MILLISECONDS = 300;
const MOST_COMPARED = 8;
const OPTIONAL = ["#", "priority", "starts, or time left", "owner", "waits for, or reason"];
/** @type {Record<string, { word: string, states: string[] }>} */
const LISTS = {
    live: { word: "Queue", states: LIVE_STATES },
    ended: { word: "Ended", states: ENDED_STATES },
    all: { word: "All", states: [] },
    ...Object.fromEntries(ENDED_STATES.map((each) => [each, { word: each, states: [each] }])),
};

/**
 * Return jobs of the queue in the order in which they start: running ones, queued ones by position, paused ones.
 * @param {Job[]} jobs
 */
export function inOrderOfStarts(jobs) {
    const place = (/** @type {Job} */ job) => LIVE_STATES.indexOf(job.state);
    return [...jobs].sort(
        (one, other) => place(one) - place(other) || (one.position ?? 0) - (other.position ?? 0),
    );
}

/**
 * @param {HTMLElement} root
 * @param {Shell} shell
 */
export function showJobs(root, shell) {
    /** @type {Map<string, Job>} */
    const shown = new Map();
    /** @type {Set<string>} */
    const chosen = new Set();
    /** @type {(string | null)[]} Tokens of the pages up to the one that is shown. */
    let pages = [null];
    /** @type {string | null} */
    let nextPage = null;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let typing;

    const list = h(
        "select",
        { id: "list", name: "list", onchange: begin },
        Object.entries(LISTS).map(([name, each]) => h("option", { value: name }, each.word)),
    );
    const name = h("input", {
        id: "name",
        name: "name",
        type: "search",
        maxlength: 200,
        autocomplete: "off",
        oninput: typed,
    });
    const owner = h("input", {
        id: "owner",
        name: "owner",
        type: "search",
        maxlength: 200,
        autocomplete: "off",
        oninput: typed,
    });
    const actions = actionButtons(chosenJobs, () => repetition.now());
    const compare = h("a", { class: "button", href: "#/compare" }, "Compare");
    actions.add(compare);
    const selection = h("p", { class: "note", "aria-live": "polite" });
    const all = h("input", {
        type: "checkbox",
        "aria-label": "Choose all jobs of this page",
        onchange: chooseAll,
    });
    const body = h("tbody", null);
    const empty = h("p", null);
    const previous = h("button", { type: "button", onclick: () => turn(-1) }, "Previous page");
    const next = h("button", { type: "button", onclick: () => turn(1) }, "Next page");
    const pageNumber = h("span", { class: "note", "aria-live": "polite" });
    const head = [
        "#",
        "job",
        "state",
        "progress",
        "loss",
        "workers",
        "priority",
        "starts, or time left",
        "owner",
        "waits for, or reason",
        "submitted",
    ];
    const wide = ["workers", "owner", "submitted", "loss", "priority"];
    const table = h(
        "table",
        { class: "jobs" },
        h("caption", { class: "hidden-text" }, "Jobs"),
        h(
            "thead",
            null,
            h(
                "tr",
                null,
                h("th", { scope: "col" }, all),
                head.map((text) => h("th", { scope: "col", class: wide.includes(text) && "wide" }, text)),
            ),
        ),
        body,
    );
    const problems = h("div", null);

    fill(
        root,
        h(
            "div",
            { class: "bar" },
            h("h1", { class: "push" }, "Jobs"),
            h("a", { class: "button primary", href: "#/submit" }, "Submit a job"),
        ),
        h(
            "form",
            {
                class: "bar filter",
                role: "search",
                onsubmit: (/** @type {Event} */ event) => event.preventDefault(),
            },
            h("label", { for: "list" }, "Show"),
            list,
            h("label", { for: "name" }, "Name has"),
            name,
            h("label", { for: "owner" }, "Owner"),
            owner,
        ),
        h("div", { class: "bar sticky" }, actions.root, selection),
        problems,
        h("div", { class: "scrolling", role: "region", "aria-label": "Table of jobs", tabindex: "0" }, table),
        empty,
        h("nav", { class: "bar", "aria-label": "Pages of jobs" }, previous, pageNumber, next),
    );

    const repetition = repeat(async (signal) => {
        try {
            const isQueue = list.value === "live";
            const page = await getJobs(
                {
                    states: LISTS[list.value].states,
                    name: name.value.trim(),
                    owner: owner.value.trim(),
                    order: isQueue ? "oldest" : "newest",
                    limit: PAGE_JOBS,
                    pageToken: pages[pages.length - 1] ?? undefined,
                },
                signal,
            );
            draw(isQueue ? inOrderOfStarts(page.jobs) : page.jobs, page.next_page_token);
            shell.report(null);
        } catch (error) {
            if (!signal.aborted) shell.report(error);
        }
    });

    function chosenJobs() {
        return [...chosen].map((each) => shown.get(each)).filter((each) => each !== undefined);
    }

    function typed() {
        clearTimeout(typing);
        typing = setTimeout(begin, TYPING_MILLISECONDS);
    }

    function begin() {
        pages = [null];
        chosen.clear();
        repetition.now();
    }

    /** @param {number} direction */
    function turn(direction) {
        if (direction > 0 && nextPage) pages.push(nextPage);
        else if (direction < 0 && pages.length > 1) pages.pop();
        chosen.clear();
        repetition.now();
    }

    function chooseAll() {
        chosen.clear();
        if (all.checked) for (const job of shown.keys()) chosen.add(job);
        for (const box of body.querySelectorAll("input")) box.checked = all.checked;
        tellSelection();
    }

    function tellSelection() {
        const count = chosen.size;
        setText(
            selection,
            count ? `${counted(count, "job")} chosen` : "Choose jobs to change several at once",
        );
        all.checked = count > 0 && count === shown.size;
        all.indeterminate = count > 0 && count < shown.size;
        compare.hidden = count < 2 || count > MOST_COMPARED;
        compare.setAttribute("href", `#/compare?jobs=${[...chosen].map(encodeURIComponent).join(",")}`);
        actions.update();
    }

    /** @param {Job[]} jobs @param {string | null} nextToken */
    function draw(jobs, nextToken) {
        shown.clear();
        for (const job of jobs) shown.set(job.job, job);
        for (const job of chosen) if (!shown.has(job)) chosen.delete(job);
        reconcile(
            body,
            jobs,
            (job) => job.job,
            (job) => makeRow(job),
            updateRow,
        );
        hideEmptyColumns();
        nextPage = nextToken;
        previous.disabled = pages.length === 1;
        next.disabled = !nextToken;
        setText(pageNumber, `page ${pages.length}${nextToken ? "" : ", the last one"}`);
        setText(
            empty,
            jobs.length
                ? ""
                : list.value === "live" && pages.length === 1 && !name.value && !owner.value
                  ? "The queue is empty."
                  : "No such jobs.",
        );
        tellSelection();
    }

    /** Hide columns that say nothing of any job, such as owners where there is no security. */
    function hideEmptyColumns() {
        head.forEach((text, place) => {
            if (!OPTIONAL.includes(text)) return;
            const isEmpty = [...body.rows].every((row) => !row.cells[place + 1].textContent?.trim());
            for (const row of table.rows) row.cells[place + 1].hidden = isEmpty;
        });
    }

    /** @param {Job} job */
    function makeRow(job) {
        const box = h("input", {
            type: "checkbox",
            "aria-label": `Choose ${job.name || "job"} ${shortId(job.job)}`,
            onchange: () => {
                if (box.checked) chosen.add(job.job);
                else chosen.delete(job.job);
                tellSelection();
            },
        });
        return h(
            "tr",
            null,
            h("td", null, box),
            head.map((text) => h("td", { class: wide.includes(text) && "wide" })),
        );
    }

    /** @param {HTMLTableRowElement} row @param {Job} job */
    function updateRow(row, job) {
        /** @type {HTMLInputElement} */ (row.cells[0].firstElementChild).checked = chosen.has(job.job);
        const cells = jobCells(job);
        cells.forEach((content, place) => patch(row.cells[place + 1], content));
    }

    tellSelection();
    return () => {
        clearTimeout(typing);
        repetition.stop();
    };
}

/**
 * Return the content of a job's row.
 * @param {Job} job
 * @returns {import("./dom.js").Child[][]}
 */
function jobCells(job) {
    const state = jobState(job);
    const phase = jobPhase(job);
    const done = job.steps ? job.step / job.steps : 0;
    const left =
        job.state === "running" && job.seconds_left !== null ? `${duration(job.seconds_left)} left` : "";
    return [
        [job.position],
        [
            h(
                "a",
                { href: `#/jobs/${encodeURIComponent(job.job)}` },
                job.name || "job",
                " ",
                h("span", { class: "id" }, shortId(job.job)),
            ),
        ],
        [badge(state, SIGNS[state]), phase && ` ${phase}`],
        [
            h("progress", { max: 1, value: done, "aria-label": `step ${job.step} of ${job.steps}` }),
            ` ${share(done)} `,
            h("span", { class: "soft" }, `${whole(job.step)} of ${whole(job.steps)}`),
        ],
        [loss(job.loss)],
        [job.workers ? `${job.workers} (${workersWanted(job)})` : workersWanted(job)],
        [job.priority || ""],
        [jobStart(job) || left],
        [job.owner],
        [jobReason(job)],
        [time(job.submitted)],
    ];
}
