/** The HTTP API (docs/use/http-api.md) as functions. The session's cookie goes along; no token is kept here. */

/**
 * @typedef {Object} Job
 * @property {string} job
 * @property {string} name
 * @property {string | null} owner
 * @property {string} state
 * @property {string | null} phase
 * @property {string | null} started_from
 * @property {string | null} detail
 * @property {number} priority
 * @property {boolean} pausing
 * @property {number | null} position
 * @property {number | null} estimated_start_seconds
 * @property {number | null} min_workers
 * @property {number | null} max_workers
 * @property {string | null} waiting
 * @property {number} workers
 * @property {number | null} efficiency
 * @property {Record<string, number>} worker_seconds
 * @property {number | null} evaluated_batches
 * @property {number | null} evaluation_batches
 * @property {number} step
 * @property {number} steps
 * @property {number | null} loss
 * @property {number | null} validation_loss
 * @property {number | null} validation_step
 * @property {number | null} checkpoint_step
 * @property {string | null} model_sha256
 * @property {number | null} parameters
 * @property {number} tokens_per_second
 * @property {number | null} mfu
 * @property {number | null} seconds_left
 * @property {string | null} skipped
 * @property {Record<string, string> | null} excluded
 * @property {number} generation
 * @property {string | null} submitted
 * @property {string | null} started
 * @property {string | null} ended
 *
 * @typedef {Object} Worker
 * @property {string} name
 * @property {string} state
 * @property {string | null} job
 * @property {string | null} detail
 * @property {number | null} row
 * @property {number | null} first_stage
 * @property {number} stages
 * @property {number} generation
 * @property {number} step
 * @property {number} seconds_since_heard
 * @property {number} micro_batches_per_second
 * @property {number | null} seconds_since_speed
 * @property {string | null} activity
 * @property {string | null} host
 * @property {string | null} version
 * @property {number[] | null} [mesh]
 * @property {Record<string, number> | null} [axes]
 * @property {Record<string, unknown>[] | null} [chips]
 *
 * @typedef {{ role: string, peer: string, job: string, step: number, what: string, seconds: number }} Wait
 * @typedef {{ name: string | null, address: string, version: string | null, connected: boolean, detail: string | null,
 *     seconds_since_heard: number | null }} Shard
 * @typedef {{ from: string, to: string, round_trip_seconds: number | null, sent_bytes_per_second: number | null,
 *     received_bytes_per_second: number | null }} Link
 *
 * @typedef {Object} Cluster
 * @property {number} epoch
 * @property {string} leader
 * @property {string | null} version
 * @property {{ name: string, seconds_since_heard: number }[]} standbys
 * @property {number} tiers
 * @property {string} optimizer
 * @property {string | null} optimizer_host
 * @property {string | null} optimizer_version
 * @property {string[]} running_jobs
 * @property {string | null} waiting
 * @property {Record<string, string>} job_waits
 * @property {Wait[]} waits
 * @property {Shard[]} shards
 * @property {Record<string, number>} worker_seconds
 * @property {number | null} efficiency
 * @property {Worker[]} workers
 * @property {{ worker: string, first_stage: number, stages: number } | null} slowest_stages
 * @property {Link[]} links
 *
 * @typedef {Record<string, unknown>} Takes
 * @typedef {{ path: string, sha256: string | null }} MissingFile
 * @typedef {{ path: string, sha256: string }} Code
 * @typedef {{ config: string, overrides?: Record<string, unknown>, files?: Record<string, string>, code?: Code, name?: string,
 *     request_id?: string }} Submission
 * @typedef {{ config: string, overrides: Record<string, unknown>, files: Record<string, string>, code?: Code | null,
 *     settings: Record<string, unknown>, takes?: Takes | null }} JobConfig
 * @typedef {{ step: number, files: Record<string, { sha256: string, bytes: number }> }} Checkpoint
 * @typedef {{ name: string, kind: string, values?: (string | null)[], base64?: string }} MetricsColumn
 * @typedef {{ steps_per_row: number, columns: MetricsColumn[], next_from: number | null }} Metrics
 */

/** A refusal or a failure, as RFC 9457 has it. */
export class Problem extends Error {
    /** @param {Record<string, any>} members */
    constructor(members) {
        super(String(members.detail ?? members.title ?? "the request failed"));
        this.type = String(members.type ?? "").replace("/problems/", "");
        this.status = Number(members.status ?? 0);
        /** @type {string | null} */
        this.fix = members.fix ?? null;
        /** @type {string | null} */
        this.field = members.field ?? null;
        /** @type {MissingFile[]} */
        this.missing = members.missing ?? [];
        /** @type {string | null} */
        this.since = members.since ?? null;
    }

    /** What is wrong, without how to fix it, which is said apart. */
    get what() {
        const end = this.fix === null ? "" : `; ${this.fix}`;
        return end && this.message.endsWith(end) ? this.message.slice(0, -end.length) : this.message;
    }
}

/** Called with the version of an answer, after each answer or event, and with a problem that ends the session. */
export const listeners = {
    /** @type {(version: string) => void} */
    version: () => {},
    alive: () => {},
    /** @type {(problem: Problem) => void} */
    sessionEnded: () => {},
};

/**
 * Return the answer of a request that was let in.
 * @param {string} path
 * @param {RequestInit} [init]
 * @throws {Problem}
 */
export async function request(path, init = {}) {
    /** @type {Response} */
    let answer;
    try {
        answer = await fetch(path, { credentials: "same-origin", ...init });
    } catch (error) {
        if (init.signal?.aborted) throw error;
        throw new Problem({
            type: "unreachable",
            detail: `${location.origin}: no answer; look at tiermesh web on its host, and at the network`,
            fix: "look at tiermesh web on its host, and at the network",
        });
    }
    const version = answer.headers.get("Tiermesh-Version");
    if (version) listeners.version(version);
    if (answer.ok) {
        listeners.alive();
        return answer;
    }
    const problem = await readProblem(answer);
    if (answer.status === 401 && path !== "/v1/session") listeners.sessionEnded(problem);
    throw problem;
}

/** @param {Response} answer */
async function readProblem(answer) {
    /** @type {Record<string, unknown>} */
    let members = {};
    try {
        members = await answer.json();
    } catch {
        members = {
            detail: `the answer ${answer.status} has no explanation; look at what stands between here and tiermesh web`,
        };
    }
    return new Problem({ ...members, status: answer.status });
}

/**
 * @param {string} path
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
async function get(path, signal) {
    return (await request(path, { signal })).json();
}

/**
 * @param {string} path
 * @param {unknown} body
 * @param {RequestInit} [init]
 */
async function post(path, body, init = {}) {
    const headers = { "Content-Type": "application/json", ...init.headers };
    return request(path, { ...init, method: "POST", headers, body: JSON.stringify(body) });
}

/** @param {string} job */
function jobPath(job) {
    return `/v1/jobs/${encodeURIComponent(job)}`;
}

// ---- session ----

/** @returns {Promise<{ name?: string, role?: string }>} */
export async function session() {
    return get("/v1/session");
}

/** @param {string} token */
export async function logIn(token) {
    await post("/v1/session", {}, { headers: { Authorization: `Bearer ${token}` } });
}

export async function logOut() {
    await request("/v1/session", { method: "DELETE" });
}

// ---- cluster and jobs ----

/** @param {AbortSignal} [signal] @returns {Promise<Cluster>} */
export async function cluster(signal) {
    return get("/v1/cluster", signal);
}

/**
 * @param {{ states?: string[], name?: string, owner?: string, order?: "newest" | "oldest", pageToken?: string,
 *     limit?: number }} filter
 * @param {AbortSignal} [signal]
 * @returns {Promise<{ jobs: Job[], next_page_token: string | null }>}
 */
export async function jobs(filter, signal) {
    const query = new URLSearchParams();
    for (const state of filter.states ?? []) query.append("state", state);
    if (filter.name) query.set("name", filter.name);
    if (filter.owner) query.set("owner", filter.owner);
    if (filter.order === "oldest") query.set("order", "oldest");
    if (filter.pageToken) query.set("page_token", filter.pageToken);
    if (filter.limit) query.set("limit", String(filter.limit));
    return get(`/v1/jobs?${query}`, signal);
}

/** @param {string} job @param {AbortSignal} [signal] @returns {Promise<Job>} */
export async function job(job, signal) {
    return get(jobPath(job), signal);
}

/**
 * Change a job, and return it, or the new job of `continue`.
 * @param {string} job
 * @param {"cancel" | "pause" | "resume" | "priority" | "continue"} action
 * @param {Record<string, unknown>} body
 * @returns {Promise<Job>}
 */
export async function change(job, action, body) {
    return (await post(`${jobPath(job)}/${action}`, body)).json();
}

/** @param {string} job @param {AbortSignal} [signal] @returns {Promise<JobConfig>} */
export async function jobConfig(job, signal) {
    return get(`${jobPath(job)}/config`, signal);
}

/**
 * @param {string} job
 * @param {number | null} before
 * @param {AbortSignal} [signal]
 * @returns {Promise<{ checkpoints: Checkpoint[], next_before: number | null }>}
 */
export async function checkpoints(job, before, signal) {
    return get(`${jobPath(job)}/checkpoints${before === null ? "" : `?before=${before}`}`, signal);
}

/** @param {string} job @param {number} step @param {string} file */
export function checkpointUrl(job, step, file) {
    return `${jobPath(job)}/checkpoints/${step}/${encodeURIComponent(file)}`;
}

/** @param {string} job */
export function logUrl(job) {
    return `${jobPath(job)}/log`;
}

/**
 * @param {string} job
 * @param {number} count
 */
export function newestLinesUrl(job, count) {
    return `${logUrl(job)}?tail=${count}`;
}

/** @param {string} job */
export function eventsUrl(job) {
    return `${jobPath(job)}/events`;
}

/**
 * @param {string} job
 * @param {{ columns?: string[], from?: number, to?: number, points?: number }} range
 * @param {AbortSignal} [signal]
 * @returns {Promise<Metrics>}
 */
export async function metrics(job, range, signal) {
    const query = new URLSearchParams({ encoding: "base64" });
    if (range.columns) query.set("columns", range.columns.join(","));
    if (range.from) query.set("from", String(Math.floor(range.from)));
    if (range.to) query.set("to", String(Math.ceil(range.to)));
    if (range.points) query.set("points", String(range.points));
    return get(`${jobPath(job)}/metrics?${query}`, signal);
}

// ---- submission ----

/**
 * @param {Submission} submission
 * @param {AbortSignal} [signal]
 * @returns {Promise<{ notices: string[], takes: Takes }>}
 */
export async function check(submission, signal) {
    return (await post("/v1/jobs/check", submission, { signal })).json();
}

/** @param {Submission} submission @returns {Promise<{ job: Job, notices: string[] }>} */
export async function submit(submission) {
    return (await post("/v1/jobs", submission)).json();
}

/** @param {string} sha256 @param {Blob} file */
export async function putFile(sha256, file) {
    const headers = { "Content-Type": "application/octet-stream" };
    await request(`/v1/files/${sha256}`, { method: "PUT", headers, body: file });
}
