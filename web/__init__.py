"""The HTTP API and the page: a role of its own, which calls the aggregator by gRPC with the token of its caller.

1. `app.py` has the paths; `docs/use/http-api.md` is what callers rely on.
2. `guard.py` decides, before a path is looked up, whether a request is served; it counts requests and answers.
   `credentials.py` reads the server's name, the page that sent it, and the token; `bodies.py` the body.
3. `port.py` has the connections, on uvicorn's HTTP/1.1, and the headers of every answer.
4. `submission.py` makes a job of a config whose files are named by SHA-256; `job_config.py` makes that of a job.
5. `streams.py` has the long answers, with `events.py` and `ranges.py`.
6. `problems.py` makes an answer of every error.
7. `static.py` serves the page, which is in `page/`: no build, no server's part in it.
8. `service.py` and `daemon.py` run it.
"""
