/** Asking again while the page is visible: one request at a time, none while the tab is hidden. */

export const REFRESH_SECONDS = 5;

/**
 * Call a task now and then again, `seconds` after it has ended, while the page is visible. The signal is aborted when
 * the repetition is stopped.
 * @param {(signal: AbortSignal) => Promise<void>} task It handles its own errors.
 * @returns {{ now: () => void, stop: () => void }}
 */
export function repeat(task, seconds = REFRESH_SECONDS) {
    const controller = new AbortController();
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let timer;
    let running = false;
    let again = false;

    async function run() {
        clearTimeout(timer);
        if (running) {
            again = true;
            return;
        }
        if (controller.signal.aborted || document.hidden) return;
        running = true;
        try {
            await task(controller.signal);
        } finally {
            running = false;
        }
        if (controller.signal.aborted) return;
        timer = setTimeout(run, again ? 0 : 1000 * seconds);
        again = false;
    }

    document.addEventListener("visibilitychange", run, { signal: controller.signal });
    run();
    return {
        now: run,
        stop: () => {
            clearTimeout(timer);
            controller.abort();
        },
    };
}
