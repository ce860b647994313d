/** One job: what it is and does, its curves as they grow, who is slow, its log, its checkpoints. */

import { cluster as getCluster, job as getJob, jobConfig, metrics, Problem } from "./api.js";
import { timeBar } from "./bars.js";
import { CheckpointList } from "./checkpoint_list.js";
import { announce, badge, fill, h, patch, problemBox, setText } from "./dom.js";
import { appendStep, emptyHistory, readHistory } from "./history.js";
import { actionButtons } from "./job_actions.js";
import { Curves } from "./job_curves.js";
import { configSection, jobFacts, marksTable, stragglers, workersOfJob } from "./job_parts.js";
import { LogView } from "./log_view.js";
import { markOf, marksOfLog, mergeMarks } from "./marks.js";
import { REFRESH_SECONDS, repeat } from "./refresh.js";
import { StepPicture } from "./step_picture.js";
import { follow } from "./stream.js";
import { share, shortId, whole } from "./text.js";
import { jobPhase, jobState, SIGNS } from "./words.js";

/** @typedef {import("./api.js").Job} Job */
/** @typedef {import("./main.js").Shell} Shell */
/** @typedef {import("./marks.js").Mark} Mark */

/** Rows that come by events before the whole history is asked for again, with as many rows as fit the screen. */
const MOST_LIVE_ROWS = 600;
const MOST_POINTS = 2000;
const WORKERS_SECONDS = 10;
/** Answers that would be the same another time. */
const FINAL_STATUSES = [403, 404, 422];
const STEP_FIGURES = [
    "grad_norm",
    "learning_rate",
    "step_seconds",
    "compute_seconds",
    "wire_seconds",
    "update_seconds",
    "wait_seconds",
];
const HOW_EVENTS_COME = { live: "live", polling: "asked for every 5 s", ended: "ended", lost: "not reached" };

/** Number of points that a curve is asked for: its width in pixels. */
function pointsOfScreen() {
    return Math.max(300, Math.min(MOST_POINTS, Math.round(document.documentElement.clientWidth)));
}

/**
 * @param {HTMLElement} root
 * @param {Shell} shell
 * @param {string} id
 */
export function showJob(root, shell, id) {
    const leaving = new AbortController();
    const { signal } = leaving;
    /** @type {Job | null} */
    let job = null;
    let history = emptyHistory();
    let liveRows = 0;
    /** @type {number | null} */
    let tokensPerStep = null;
    /** @type {Mark[]} */
    let marks = [];
    let loading = false;
    let again = false;
    let howBefore = "";
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let retry;
    /** Whether events were missed, so that the history has rows which did not come. */
    let missed = false;
    /** Rows that came while the history was asked for. @type {{ row: Record<string, number | null>, waitedFor: string | null }[]} */
    let pending = [];
    /** @type {(() => void)[]} */
    const stops = [];

    const title = h("h1", null, shortId(id));
    const state = h("p", { class: "state" });
    const connection = h("span", { class: "note" });
    const progress = h("progress", { max: 1, value: 0, "aria-label": "Steps made" });
    const progressText = h("span", null);
    const factsBox = h("div", null);
    const times = h("div", null);
    const slow = h("div", null);
    const workers = h("div", null);
    const events = h("div", null);
    const config = h("div", null);
    const problem = h("div", null);
    const actions = actionButtons(
        () => (job ? [job] : []),
        (action, changed) => {
            if (!changed.length) return;
            if (action === "continue") location.hash = `#/jobs/${encodeURIComponent(changed[0].job)}`;
            else drawJob(changed[0]);
        },
    );
    actions.add(
        h("a", { class: "button", href: `#/submit?clone=${encodeURIComponent(id)}` }, "Clone and edit"),
        h("a", { class: "button", href: `#/compare?jobs=${encodeURIComponent(id)}` }, "Compare"),
    );
    const picture = new StepPicture(id);
    const curves = new Curves({ zoom: () => load(), choose: (step) => picture.show(step) });
    const checkpoints = new CheckpointList(id);
    const log = new LogView(id);
    log.onread = () => {
        marks = mergeMarks([...marksOfLog(log.lines), ...marks]);
        drawCurves();
    };
    checkpoints.onread = (found) => {
        marks = mergeMarks([
            ...marks,
            ...found.map((each) => ({
                kind: /** @type {const} */ ("checkpoint"),
                step: each.step,
                time: null,
                text: `checkpoint of step ${each.step}`,
            })),
        ]);
        drawCurves();
    };

    fill(
        root,
        h("div", { class: "bar title" }, title, state, connection),
        actions.root,
        problem,
        h("div", { class: "progress" }, progress, progressText),
        h(
            "div",
            { class: "columns" },
            h(
                "section",
                { "aria-labelledby": "facts-title" },
                h("h2", { id: "facts-title" }, "Job"),
                factsBox,
            ),
            h(
                "section",
                { "aria-labelledby": "times-title" },
                h("h2", { id: "times-title" }, "Where the time goes"),
                times,
                slow,
            ),
        ),
        h(
            "section",
            { "aria-labelledby": "curves-title" },
            h("h2", { id: "curves-title" }, "Curves"),
            curves.root,
            events,
        ),
        picture.root,
        h(
            "section",
            { "aria-labelledby": "workers-title" },
            h("h2", { id: "workers-title" }, "Workers"),
            workers,
        ),
        log.root,
        checkpoints.root,
        config,
    );

    /** @param {Job} found */
    function drawJob(found) {
        const before = job;
        job = found;
        setText(title, found.name || "job");
        const word = jobState(found);
        patch(state, badge(word, SIGNS[word]), ` ${jobPhase(found)}`);
        const done = found.steps ? found.step / found.steps : 0;
        progress.value = done;
        setText(progressText, `${share(done)}, step ${whole(found.step)} of ${whole(found.steps)}`);
        patch(factsBox, jobFacts(found));
        patch(
            times,
            timeBar(found.worker_seconds, "What the workers' time was spent on") ??
                h("p", null, "No time was spent yet."),
        );
        actions.update();
        document.title = `${found.name || "job"} ${word} ${share(done)} – Tiermesh`;
        if (before && before.state !== found.state) announce(`job ${found.name} is ${found.state}`);
        if (before && found.checkpoint_step !== before.checkpoint_step) checkpoints.read();
    }

    function drawCurves() {
        curves.set([{ label: job?.name ?? "job", history, tokensPerStep }], marks);
        patch(slow, stragglers(history.waitedFor));
        patch(events, marksTable(marks));
    }

    async function load() {
        if (loading) {
            again = true; // another zoom, perhaps
            return;
        }
        loading = true;
        try {
            const zoom = curves.zoom;
            history = readHistory(
                await metrics(id, { points: pointsOfScreen(), from: zoom?.first, to: zoom?.last }, signal),
            );
            const last = history.steps[history.steps.length - 1] ?? 0;
            for (const each of zoom ? [] : pending)
                if ((each.row.step ?? 0) > last) appendStep(history, each.row, each.waitedFor);
            liveRows = 0;
            drawCurves();
        } catch (error) {
            if (!signal.aborted && job) shell.report(error); // that there is no such job is said in its place
        } finally {
            loading = false;
            pending = [];
        }
        if (again && !signal.aborted) {
            again = false;
            await load();
        }
    }

    /** @param {import("./stream.js").StreamEvent} event */
    function take(event) {
        const { data, kind } = event;
        if (kind === "state")
            log.readNewer(); // the first one of a stream is no line of the log
        else if (data.text) log.add(data.time, data.text);
        if (data.job) drawJob(data.job);
        const mark = markOf(data.text ?? "", data.job?.step ?? job?.step ?? 0, data.time ?? null);
        if (mark) marks = mergeMarks([...marks, mark]);
        if (kind === "missed") missed = true;
        else if (kind === "state" && missed) {
            missed = false;
            if (!curves.zoom) load();
        }
        if (kind === "step") addStep(data);
        else if (kind === "evaluation") addEvaluation(data.job);
        else if (mark) drawCurves();
    }

    /** @param {any} data */
    function addStep(data) {
        if (curves.zoom) return;
        /** @type {Record<string, number | null>} */
        const row = {
            step: data.job.step,
            unix_seconds: Date.parse(data.time) / 1000,
            loss: data.job.loss,
            mfu: data.job.mfu,
            tokens_per_second: data.job.tokens_per_second || null,
        };
        for (const name of STEP_FIGURES) row[name] = data[name] ?? null;
        if (loading) {
            pending.push({ row, waitedFor: data.waited_for ?? null });
            return;
        }
        appendStep(history, row, data.waited_for ?? null);
        liveRows += 1;
        if (liveRows > MOST_LIVE_ROWS || (history.stepsPerRow > 1 && liveRows > 2 * history.stepsPerRow))
            load();
        else drawCurves();
    }

    /** @param {Job} found */
    function addEvaluation(found) {
        const column = history.figures.get("validation_loss");
        const row = history.steps.lastIndexOf(found.validation_step ?? -1);
        if (column && row >= 0) column.mean[row] = found.validation_loss ?? NaN;
        else if (!curves.zoom) load();
        drawCurves();
    }

    async function begin() {
        try {
            const [found] = await Promise.all([getJob(id, signal), load()]);
            fill(problem);
            drawJob(found);
            stops.push(
                follow(found.job, {
                    event: take,
                    job: (changed) => {
                        const moved = changed.step !== job?.step;
                        drawJob(changed);
                        if (moved && !curves.zoom) load();
                        log.readNewer();
                    },
                    state: (how, lost) => {
                        setText(connection, HOW_EVENTS_COME[how]);
                        shell.report(how === "lost" ? lost : null);
                        if (how !== howBefore && ["lost", "polling"].includes(howBefore)) {
                            load();
                            checkpoints.read();
                        }
                        howBefore = how;
                    },
                }),
            );
            checkpoints.read();
            const repetition = repeat(async (repeated) => {
                try {
                    patch(workers, workersOfJob(await getCluster(repeated), found.job));
                } catch (error) {
                    if (!repeated.aborted) shell.report(error);
                }
            }, WORKERS_SECONDS);
            stops.push(repetition.stop);
            await readConfig();
        } catch (error) {
            if (signal.aborted) return;
            fill(problem, problemBox(error));
            const isFinal = error instanceof Problem && FINAL_STATUSES.includes(error.status);
            if (!isFinal) retry = setTimeout(begin, 1000 * REFRESH_SECONDS);
        }
    }

    async function readConfig() {
        try {
            const found = await jobConfig(id, signal);
            const tokens = found.takes?.tokens_per_step;
            tokensPerStep = typeof tokens === "number" && tokens > 0 ? tokens : null;
            fill(config, configSection(found));
            drawCurves();
        } catch (error) {
            if (!signal.aborted && error instanceof Problem)
                fill(config, h("section", null, h("h2", null, "Settings"), problemBox(error)));
        }
    }

    begin();
    return () => {
        leaving.abort();
        clearTimeout(retry);
        for (const stop of stops) stop();
        curves.destroy();
        log.destroy();
        checkpoints.destroy();
        picture.destroy();
    };
}
