/** A job's events as they happen, over one stream; where a proxy keeps them back, the job is asked for instead.
 *
 * A browser has six connections to a server, for all of its windows, and a stream keeps one. So a few windows have
 * streams, and the others ask until one of these ends.
 *
 * The stream is read by `fetch`, not by EventSource, because that hides two things that matter here: the comments, by
 * which one knows that a proxy does not buffer, and the problem in the answer of a refused request.
 */

import { eventsUrl, job as getJob, listeners, Problem, request } from "./api.js";
import { REFRESH_SECONDS } from "./refresh.js";
import { ENDED_STATES } from "./words.js";

/** A comment comes every 15 s without an event. */
export const SILENCE_SECONDS = 40;
const RECONNECT_SECONDS = 2;
/** Polls before the stream is tried again. */
const POLLS = 12;
/** The same where the stream was silent, so that a proxy seems to keep it back. */
const POLLS_OF_BUFFERED = 240;
const MOST_PENDING_CHARACTERS = 1 << 22;
/** Windows of a browser that have streams; it leaves three connections for everything else. */
export const MOST_STREAMS = 3;

/** @typedef {import("./api.js").Job} Job */
/** @typedef {{ id: string | null, kind: string, data: any }} StreamEvent */

/**
 * @typedef {Object} Follower
 * @property {(event: StreamEvent) => void} event Takes an event of the job.
 * @property {(job: Job) => void} job Takes the job's state, when it was asked for.
 * @property {(state: "live" | "polling" | "ended" | "lost", problem?: Problem) => void} state Takes how events come.
 */

/** Splits a stream of text into server-sent events, and counts its comments as signs of life. */
export class EventParser {
    #pending = "";

    /**
     * Return the events that are complete now.
     * @param {string} text
     * @returns {StreamEvent[]}
     */
    push(text) {
        this.#pending += text;
        if (this.#pending.length > MOST_PENDING_CHARACTERS)
            throw new Error("an event of more than 4 million characters");
        const blocks = this.#pending.split("\n\n");
        this.#pending = blocks.pop() ?? "";
        return blocks.map(parseEvent).filter((each) => each !== null);
    }
}

/**
 * @param {string} block
 * @returns {StreamEvent | null}
 */
function parseEvent(block) {
    /** @type {Record<string, string>} */
    const fields = {};
    for (const line of block.split("\n")) {
        const end = line.indexOf(":");
        if (end > 0) fields[line.slice(0, end)] = line.slice(end + 1).replace(/^ /, "");
    }
    if (fields.data === undefined) return null;
    return { id: fields.id ?? null, kind: fields.event ?? "message", data: JSON.parse(fields.data) };
}

/**
 * Run a task that keeps a connection, unless as many windows of this browser as may do so already.
 * @param {() => Promise<void>} task
 * @returns {Promise<boolean>} Whether it has run.
 */
async function runWithStream(task) {
    if (!navigator.locks) {
        // Only pages of localhost or TLS have them.
        await task();
        return true;
    }
    for (let place = 0; place < MOST_STREAMS; place++) {
        const ran = await navigator.locks.request(
            `tiermesh-stream-${place}`,
            { ifAvailable: true },
            async (lock) => {
                if (lock) await task();
                return lock !== null;
            },
        );
        if (ran) return true;
    }
    return false;
}

/**
 * Follow a job until it ends or this is stopped. Nothing is asked for while the tab is hidden.
 * @param {string} job
 * @param {Follower} follower
 * @returns {() => void} Stops it.
 */
export function follow(job, follower) {
    let stopped = false;
    let ended = false;
    /** @type {string | null} */
    let lastId = null;
    let polls = 0;
    /** @type {AbortController | null} */
    let current = null;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let timer;

    function later(/** @type {number} */ seconds) {
        clearTimeout(timer);
        if (!stopped && !ended && !document.hidden) timer = setTimeout(advance, 1000 * seconds);
    }

    async function advance() {
        if (stopped || ended || document.hidden || current) return;
        const controller = new AbortController();
        current = controller;
        let pause = REFRESH_SECONDS;
        try {
            if (polls > 0) {
                polls -= 1;
                await poll(controller.signal);
            } else if (await runWithStream(() => read(controller))) pause = RECONNECT_SECONDS;
            else await poll(controller.signal);
        } catch (error) {
            if (stopped || document.hidden) return;
            if (error instanceof Problem) {
                follower.state("lost", error);
                if (error.status === 404) ended = true;
            }
            polls = controller.signal.aborted ? POLLS_OF_BUFFERED : POLLS;
        } finally {
            if (current === controller) current = null;
        }
        later(pause);
    }

    /** @param {AbortSignal} signal */
    async function poll(signal) {
        const found = await getJob(job, signal);
        follower.state("polling");
        follower.job(found);
        ended = ENDED_STATES.includes(found.state);
        if (ended) follower.state("ended");
    }

    /** @param {AbortController} controller */
    async function read(controller) {
        /** @type {ReturnType<typeof setTimeout> | undefined} */
        let silence;
        const watch = () => {
            clearTimeout(silence);
            silence = setTimeout(() => controller.abort(), 1000 * SILENCE_SECONDS);
        };
        watch();
        try {
            const headers = lastId === null ? undefined : { "Last-Event-ID": lastId };
            const answer = await request(eventsUrl(job), { headers, signal: controller.signal });
            if (answer.status === 204 || answer.body === null) {
                ended = true;
                follower.state("ended");
                return;
            }
            const parser = new EventParser();
            const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
            for (;;) {
                const { value, done } = await reader.read();
                if (done) break;
                watch();
                for (const event of parser.push(value)) take(event);
            }
        } finally {
            clearTimeout(silence);
        }
    }

    /** @param {StreamEvent} event */
    function take(event) {
        if (event.kind === "problem") {
            const problem = new Problem(event.data);
            if (problem.status === 401) listeners.sessionEnded(problem);
            throw problem;
        }
        listeners.alive();
        if (event.kind === "away") {
            follower.state("lost", new Problem({ type: "away", ...event.data }));
            return;
        }
        lastId = event.id ?? lastId;
        follower.state("live");
        follower.event(event);
        if (event.data.job && ENDED_STATES.includes(event.data.job.state)) {
            ended = true;
            follower.state("ended");
        }
    }

    function onVisibility() {
        if (document.hidden) {
            clearTimeout(timer);
            current?.abort();
            current = null;
        } else {
            polls = 0;
            advance();
        }
    }

    document.addEventListener("visibilitychange", onVisibility);
    advance();
    return () => {
        stopped = true;
        clearTimeout(timer);
        current?.abort();
        document.removeEventListener("visibilitychange", onVisibility);
    };
}
