"""`tiermesh certs` and `tiermesh tokens`: what they make, what they refuse, and that hosts can use it."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from cli.certs.commands import DIALED_KINDS, KINDS
from cli.main import main
from services.transport.access.identity import identify
from services.transport.access.permissions import CallerKind
from services.transport.access.revocations import read_revoked
from services.transport.access.tokens import find_token, read_token_file, read_tokens
from services.transport.security import Security

Run = Callable[..., tuple[int, dict[str, Any]]]
DAY = 86400.0


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, dict[str, Any]]:
        code = main([*words, "--json"])
        return code, json.loads(capsys.readouterr().out.splitlines()[-1])

    return call


def test_kinds_are_those_of_the_table() -> None:
    assert sorted(KINDS) == sorted(kind.value for kind in CallerKind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_certificate_has_its_role_its_hosts_and_an_end(run: Run, kind: str) -> None:
    assert run("certs", "init")[0] == 0
    code, made = run("certs", "issue", kind, "some.name-1", "--host", "10.0.0.7", "--host", "a.example")
    assert code == 0
    content = Path(made["certificate"]).read_bytes()
    found = identify(content)
    assert (found.kind, found.name) == (CallerKind(kind), "some.name-1")
    days = 90 if kind in ("person", "developer", "admin") else 365
    assert abs(found.expires_seconds - time.time() - days * DAY) < 600
    certificate = x509.load_pem_x509_certificate(content)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["a.example"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]
    Security(Path(made["certificate"]), Path(made["key"]), Path("certs/authority.pem"))
    for path in Path("certs").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(Path("certs").stat().st_mode) == 0o700


def test_people_need_no_host_and_can_serve_nothing(run: Run) -> None:
    run("certs", "init")
    for kind in KINDS:
        made = run("certs", "issue", kind, "name")[1]
        certificate = x509.load_pem_x509_certificate(Path(made["certificate"]).read_bytes())
        usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert (ExtendedKeyUsageOID.SERVER_AUTH in usages) == (kind in DIALED_KINDS)
        assert names.get_values_for_type(x509.DNSName) == (["name"] if kind in DIALED_KINDS else [])


def test_nothing_is_overwritten_but_by_renew(run: Run) -> None:
    run("certs", "init")
    made = run("certs", "issue", "worker", "w", "--host", "h.example")[1]
    before = Path(made["certificate"]).read_bytes(), Path(made["key"]).read_bytes()
    for words in (("init",), ("issue", "worker", "w")):
        code, result = run("certs", *words)
        assert code == 2
        assert "exists already, and is not overwritten" in result["error"]
    assert (Path(made["certificate"]).read_bytes(), Path(made["key"]).read_bytes()) == before
    assert run("certs", "renew", "worker", "w", "--days", "30")[1] == made
    old, new = identify(before[0]), identify(Path(made["certificate"]).read_bytes())
    assert (new.kind, new.name) == (old.kind, old.name)
    assert new.serial != old.serial
    assert Path(made["key"]).read_bytes() != before[1]
    assert "h.example" in str(
        x509.load_pem_x509_certificate(Path(made["certificate"]).read_bytes())
        .extensions.get_extension_for_class(x509.SubjectAlternativeName)
        .value.get_values_for_type(x509.DNSName)
    )


def serials(*names: str) -> dict[str, int]:
    return {name: identify(Path(f"certs/{name}.pem").read_bytes()).serial for name in names}


@pytest.mark.parametrize(
    ("words", "renewed"),
    [
        (("worker", "w", "v"), {"worker-w", "worker-v"}),
        (("worker", "w", "w", "v"), {"worker-w", "worker-v"}),
        (("--all",), {"worker-w", "worker-v", "person-alice"}),
        (("worker", "--all"), {"worker-w", "worker-v"}),
        (("--within", "30"), {"worker-v", "person-alice"}),
        (("person", "--within", "30"), {"person-alice"}),
        (("--within", "3"), set()),
        (("metrics", "--all"), set()),
    ],
)
def test_renew_takes_several_names_or_all_that_end_soon(
    run: Run, words: tuple[str, ...], renewed: set[str]
) -> None:
    run("certs", "init")
    run("certs", "issue", "worker", "w", "--days", "100")
    for days in ("5", "20"):
        run("certs", "issue" if days == "5" else "renew", "worker", "v", "--days", days)
    run("certs", "issue", "person", "alice", "--days", "10")
    run("certs", "issue", "worker", "thief", "--days", "10")
    run("certs", "revoke", "worker", "thief")
    run("certs", "issue", "worker", "gone", "--days", "10")
    for path in Path("certs").glob("worker-gone.*"):
        path.unlink()
    names = ("worker-w", "worker-v", "person-alice", "worker-thief")
    before = serials(*names)
    code, result = run("certs", "renew", *words)
    assert code == 0
    after = serials(*names)
    assert {name for name in names if after[name] != before[name]} == renewed
    assert {Path(each["certificate"]).stem for each in result["renewed"]} == renewed
    recorded = {int(each["serial"], 16) for each in run("certs", "show")[1]["certificates"]}
    assert set(after.values()) <= recorded


def test_a_renewal_that_fails_changes_nothing(run: Run) -> None:
    run("certs", "init", "--days", "100")
    run("certs", "issue", "worker", "w", "--days", "10")
    before = {path.name: path.read_bytes() for path in Path("certs").iterdir()}
    for words in (("worker", "w", "nobody"), ("--all",)):  # a year is longer than the authority is valid
        code, result = run("certs", "renew", *words)
        assert code == 2
        assert len(result["error"]) <= 300
    assert {path.name: path.read_bytes() for path in Path("certs").iterdir()} == before


def test_a_certificate_is_bound_to_names_and_stays_so(run: Run) -> None:
    run("certs", "init")
    made = run("certs", "issue", "worker", "host", "--name", "w1", "--name", "w2")[1]
    assert identify(Path(made["certificate"]).read_bytes()).bound_names == ("w1", "w2")
    run("certs", "renew", "worker", "host")
    assert identify(Path(made["certificate"]).read_bytes()).bound_names == ("w1", "w2")


def test_revoke_lists_every_valid_certificate_of_a_name(run: Run) -> None:
    run("certs", "init")
    made = run("certs", "issue", "worker", "w")[1]
    serials = {identify(Path(made["certificate"]).read_bytes()).serial}
    run("certs", "renew", "worker", "w")
    serials.add(identify(Path(made["certificate"]).read_bytes()).serial)
    run("certs", "issue", "worker", "other")
    code, result = run("certs", "revoke", "worker", "w")
    assert code == 0
    assert read_revoked(Path(result["list"])) == serials
    states = {each["name"]: each["state"] for each in run("certs", "show")[1]["certificates"]}
    assert states == {"w": "revoked", "other": "valid"}
    assert run("certs", "revoke", "worker", "w")[0] == 2, "none is left"
    run("certs", "renew", "worker", "w")
    new = identify(Path(made["certificate"]).read_bytes()).serial
    assert new not in read_revoked(Path(result["list"]))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("issue", "worker", "../w"), "name '../w': expected 1 to 64 letters"),
        (("issue", "worker", "w" * 65), "expected 1 to 64 letters"),
        (("issue", "worker", "w", "--host", "a b"), "neither a DNS name nor an IP address"),
        (("issue", "worker", "w", "--host", "h:7070"), "neither a DNS name nor an IP address"),
        (("issue", "worker", "w", *("--host", "h") * 101), "expected at most 100"),
        (("issue", "worker", "w", "--days", "3650"), "longer than the authority is valid"),
        (("issue", "boss", "w"), "'boss' is not one of"),
        (("issue", "worker", "w", "--name", "a b"), "--name 'a b': expected 1 to 64 letters"),
        (("issue", "worker", "w", *("--name", "n") * 101), "expected at most 100"),
        (("issue", "person", "w", "--name", "n"), "which is no daemon"),
        (("renew",), "nothing given, expected one of KIND NAME..., --all and --within DAYS"),
        (("renew", "worker"), "nothing given"),
        (("renew", "worker", "w", "--all"), "NAME and --all given"),
        (("renew", "--all", "--within", "3"), "--all and --within given"),
        (("renew", "worker", "w"), "can't be read"),
        (("revoke", "worker", "w"), "no valid certificate of worker 'w'"),
    ],
)
def test_wrong_input_is_one_line(run: Run, words: tuple[str, ...], text: str) -> None:
    run("certs", "init", "--days", "100")
    code, result = run("certs", *words)
    assert code == 2
    assert text in result["error"]
    assert result["error"].isprintable()
    assert len(result["error"]) <= 300
    assert {path.name for path in Path("certs").iterdir()} == {"authority.pem", "authority.key"}


def test_without_an_authority_nothing_is_issued(run: Run) -> None:
    code, result = run("certs", "issue", "worker", "w")
    assert code == 2
    assert "make an authority with `tiermesh certs init`" in result["error"]


def test_tokens_are_issued_shown_and_revoked(run: Run) -> None:
    where = ("--tokens", "tokens.txt")
    code, bob = run("tokens", "issue", "bob", *where)
    assert code == 0
    code, root = run("tokens", "issue", "root", "--admin", "--days", "1", "--out", "root.txt", *where)
    assert code == 0
    token = read_token_file(Path("root.txt"))
    known = read_tokens(Path("tokens.txt"))
    found = find_token(known, token)
    assert found is not None
    assert (found.kind, found.name, found.id) == (CallerKind.ADMIN, "root", root["id"])
    assert abs(found.expires_seconds - time.time() - DAY) < 600
    person = find_token(known, bob["token"])
    assert person is not None
    assert person.kind is CallerKind.PERSON
    assert token not in Path("tokens.txt").read_text()
    for path in ("tokens.txt", "root.txt"):
        assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
    assert run("tokens", "issue", "eve", "--out", "root.txt", *where)[0] == 2, "it would be overwritten"
    assert {each["name"] for each in run("tokens", "show", *where)[1]["tokens"]} == {"bob", "root"}
    assert run("tokens", "revoke", bob["id"], *where)[0] == 0
    assert find_token(read_tokens(Path("tokens.txt")), bob["token"]) is None
    assert run("tokens", "revoke", bob["id"], *where)[0] == 2


@pytest.mark.parametrize(
    "line",
    [
        "x",
        "0123abcd worker w 2027-01-01T00:00:00+00:00 " + "0" * 64,
        "0123abcd person ../w 2027-01-01T00:00:00+00:00 " + "0" * 64,
        "0123abcd person w never " + "0" * 64,
        "0123abcd person w 2027-01-01T00:00:00+00:00 " + "0" * 63,
        "\N{SNOWMAN}",
    ],
)
def test_a_wrong_line_of_tokens_is_refused(run: Run, line: str) -> None:
    Path("tokens.txt").write_text(f"# tokens\n{line}\n")
    code, result = run("tokens", "show", "--tokens", "tokens.txt")
    assert code == 2
    assert "--tokens tokens.txt: " in result["error"]
    assert len(result["error"]) <= 300


def test_a_token_is_not_sent_in_plain_text_to_another_host(run: Run) -> None:
    run("tokens", "issue", "bob", "--out", "bob.txt", "--tokens", "tokens.txt")
    code, result = run("jobs", "--aggregator", "10.1.2.3:7070", "--token-file", "bob.txt")
    assert code == 2
    assert "10.1.2.3:7070 would get the token in plain text" in result["error"]
    Path("bob.txt").write_text("hello")
    code, result = run("jobs", "--token-file", "bob.txt")
    assert code == 2
    assert "bob.txt: has no token" in result["error"]


def test_a_time_without_a_zone_in_the_record_is_utc(run: Run, tmp_path: Path) -> None:
    run("certs", "init")
    (tmp_path / "certs/issued.txt").write_text("1f worker w 2027-01-01T00:00:00\n")
    code, result = run("certs", "show")
    assert code == 0
    assert result["certificates"][0]["expires"] == "2027-01-01T00:00:00+00:00"
