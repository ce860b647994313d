/** The page's frame: routes, session, what went wrong, and whether the page is as old as its server. */

import { listeners, logOut, Problem, session } from "./api.js";
import { showCluster } from "./cluster_view.js";
import { showCompare } from "./compare_view.js";
import { fill, h, patch, setText, time } from "./dom.js";
import { openDialog } from "./job_actions.js";
import { showJob } from "./job_view.js";
import { showJobs } from "./jobs_view.js";
import { loginForm, showLogin } from "./login_view.js";
import { repeat } from "./refresh.js";
import { showSubmit } from "./submit_view.js";

/** @typedef {{ report: (problem: unknown) => void }} Shell What views tell of: null after an answer that came. */
/** @typedef {{ name?: string, role?: string }} Caller */

const main = /** @type {HTMLElement} */ (document.getElementById("main"));
const banner = /** @type {HTMLElement} */ (document.getElementById("banner"));
const outdated = /** @type {HTMLElement} */ (document.getElementById("outdated"));
const who = /** @type {HTMLElement} */ (document.getElementById("who"));
const ownVersion = document.querySelector('meta[name="tiermesh-version"]')?.getAttribute("content") ?? "";
const START = "#/cluster";
const LOGIN = "#/login";
/** Time without an answer or event after which the page asks whether its session has ended, and between two looks. */
const SESSION_SECONDS = 2;
const LOOK_SECONDS = 1;

let leave = () => {};
/** Who is logged in, as far as is known; null for nobody. @type {Caller | null} */
let caller = null;
let lastRequest = Date.now();
let lastAnswer = new Date().toISOString();

/** @type {Shell} */
const shell = {
    report(problem) {
        if (problem === null) {
            lastAnswer = new Date().toISOString();
            if (banner.hasChildNodes()) fill(banner);
            return;
        }
        if (problem instanceof Problem && problem.status === 401) return; // the session has ended, which is told apart
        patch(banner, bannerText(problem));
    },
};

/** @param {unknown} problem */
function bannerText(problem) {
    const isAway = problem instanceof Problem && problem.type === "away";
    const what = problem instanceof Problem ? problem.what : `the page failed: ${problem}`;
    const since =
        isAway && problem.since
            ? h("span", null, "No aggregator answers since ", time(problem.since), ". ")
            : null;
    return h(
        "p",
        null,
        since,
        `${what}. What is shown is as of `,
        time(lastAnswer),
        "; the page tries again.",
    );
}

listeners.version = (version) => {
    if (!ownVersion || version === ownVersion || outdated.hasChildNodes()) return;
    fill(
        outdated,
        h(
            "p",
            null,
            `This page is of version ${ownVersion}, and its server of ${version}. `,
            h("button", { type: "button", onclick: () => location.reload() }, "Reload the page"),
        ),
    );
};

listeners.alive = () => {
    lastRequest = Date.now();
};

listeners.sessionEnded = (problem) => {
    if (!caller) return;
    drawWho(null);
    // A dialog, and no other view: what one was typing or reading stays.
    const dialog = openDialog("The session has ended", [
        h("p", null, problem.what),
        loginForm(async () => {
            await greet();
            dialog.close();
        }),
    ]);
};

/** @param {Caller | null} found */
function drawWho(found) {
    caller = found;
    if (!caller) {
        fill(who, h("a", { href: "#/login" }, "Log in"));
        return;
    }
    const text = [caller.name, caller.role].filter(Boolean).join(", ");
    fill(
        who,
        text && h("span", { class: "soft" }, text),
        h("button", { type: "button", onclick: endSession }, "Log out"),
    );
}

async function endSession() {
    try {
        await logOut();
        drawWho(null);
        location.hash = LOGIN;
    } catch (error) {
        shell.report(error);
    }
}

async function greet() {
    try {
        drawWho(await session());
    } catch (error) {
        if (error instanceof Problem && error.status === 401) {
            drawWho(null);
            return;
        }
        drawWho({});
        shell.report(error);
    }
}

/** @returns {{ path: string[], query: URLSearchParams }} */
function route() {
    const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
    return { path: path.split("/").map(decoded), query: new URLSearchParams(query ?? "") };
}

/** @param {string} text */
function decoded(text) {
    try {
        return decodeURIComponent(text);
    } catch {
        return text;
    }
}

function show() {
    leave();
    leave = () => {};
    fill(banner);
    const {
        path: [view, id],
        query,
    } = route();
    const root = h("div", { class: `view view-${view}` });
    fill(main, root);
    document.title = `${view[0]?.toUpperCase() ?? ""}${view.slice(1)} – Tiermesh`;
    for (const link of document.querySelectorAll("nav a")) {
        const isOwn = link.getAttribute("href") === `#/${view}`;
        if (isOwn) link.setAttribute("aria-current", "page");
        else link.removeAttribute("aria-current");
    }
    if (view === "login" || !caller)
        leave = showLogin(root, async () => {
            await greet();
            goOn();
        });
    else if (view === "cluster") leave = showCluster(root, shell);
    else if (view === "jobs" && id) leave = showJob(root, shell, id);
    else if (view === "jobs") leave = showJobs(root, shell);
    else if (view === "submit") leave = showSubmit(root, shell, query.get("clone"));
    else if (view === "compare")
        leave = showCompare(root, shell, (query.get("jobs") ?? "").split(",").filter(Boolean));
    else {
        fill(
            root,
            h("h1", null, "No such view"),
            h("p", null, "The address names no view of this page. Choose one above."),
        );
    }
}

/** Focus the view's heading after a change of view, so that a screen reader begins there. */
function showAndFocus() {
    show();
    const heading = main.querySelector("h1");
    heading?.setAttribute("tabindex", "-1");
    heading?.focus({ preventScroll: true });
    scrollTo(0, 0);
}

/** Go on where one was before logging in. */
function goOn() {
    if (location.hash === LOGIN) location.hash = START;
    else showAndFocus();
}

if (!location.hash) history.replaceState(null, "", START);
addEventListener("hashchange", showAndFocus);
document.getElementById("skip")?.addEventListener("click", (event) => {
    event.preventDefault(); // the address is the view's
    main.focus();
});
setText(
    /** @type {HTMLElement} */ (document.getElementById("version")),
    ownVersion ? `Tiermesh ${ownVersion}` : "",
);
await greet();
show();
// A token that is revoked ends the session, also where a view asks for nothing for a while.
repeat(async () => {
    if (!caller || Date.now() - lastRequest < 1000 * SESSION_SECONDS) return;
    await session().catch((error) => {
        if (error instanceof Problem && error.status === 401) listeners.sessionEnded(error);
    });
}, LOOK_SECONDS);
