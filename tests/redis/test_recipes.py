"""docs/recipes/: each recipe does what its page promises, when things go wrong, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.documents import ROOT, run_program, snippets
from tests.support.server import Server

pytestmark = pytest.mark.usefixtures("preloaded_processes")

FOLDER = ROOT / "docs" / "recipes"

# By page: what is checked after its own Python has run, with its names and its pushes recorded.
CHECKS = {
    "mail": """
import contextlib, smtplib
sent = []

class Server:
    def __init__(self, *_args, **_options): ...
    def __enter__(self): return self
    def __exit__(self, *_): ...
    def send_message(self, mail, _sender, to):
        if broken: raise smtplib.SMTPServerDisconnected("gone")
        sent.append((mail["Subject"], *to))

smtplib.SMTP = Server
broken = True
jobs.perform_one()
assert sent == [] and jobs[0].payload["retry_count"] == 0
assert 9 <= waits() <= 11, "backoff"
broken = False
jobs.drain()
confirm.perform_async(7, "ann@example.com")
jobs.drain()
assert sent == [("Your order 7", "ann@example.com")], "once"
""",
    "slow-api": """
import http.server, threading
answers = [429, 200]

class Api(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(answers.pop(0))
        self.send_header("Retry-After", "17")
        self.end_headers()
        self.wfile.write(b"ok")
    def log_message(self, *_): ...

server = http.server.HTTPServer(("127.0.0.1", 0), Api)
threading.Thread(target=server.serve_forever, daemon=True).start()
sync.perform_async(7, f"http://127.0.0.1:{server.server_port}/")
jobs.perform_one()
assert abs(waits() - 17) < 1, "as the server says"
assert jobs.drain() == 1 and not jobs.dead
sync.perform_async(7, "no url")
jobs.drain(check=False)
assert len(jobs.dead) == 1, "a mistake is buried at once"
server.shutdown()
server.server_close()
""",
    "csv": """
from forkq import process_state
with open("people.csv", "w") as file:
    file.write("name\\n" + "".join(f"p{i}\\n" for i in range(1700)))

def names():
    with database() as db:
        return [name for [name] in db.execute("SELECT name FROM people ORDER BY rowid")]

class Cut(Exception): ...
real, left = CurrentJob.progress, 2

def progress(self, done):
    global left
    left -= 1
    if not left: raise Cut
    real(self, done)

CurrentJob.progress = progress
import_people.perform_async("people.csv")
jobs.perform_one()
assert len(names()) == 1000 and len(jobs) == 1, "an error after the second batch"
process_state._stopping = True
jobs.perform_one()
assert len(names()) == 1500 and len(jobs) == 1, "a stop"
process_state._stopping = False
jobs.drain()
assert names() == [f"p{i}" for i in range(1700)]
""",
    "fan-out": """
start(7, 5)
start(8, 2)
jobs.drain(convert)
assert len(jobs.enqueued(bind)) == 2
convert.perform_async(7, 0)  # runs once more
jobs.drain()
with database() as db:
    assert db.execute("SELECT * FROM books").fetchall() == [(7, 1), (8, 1)]
""",
    "tenants": """
assert {job.queue for job in jobs} == {"tenant-large", "tenant-small"}
assert jobs.drain() == 101
""",
    "thumbnails": """
objects = {}

class Bucket:
    def get_object(self, *, Bucket, Key):
        return {"Body": io.BytesIO(objects[Bucket, Key])}
    def put_object(self, *, Bucket, Key, Body, ContentType):
        objects[Bucket, Key] = Body

storage = Bucket
made = io.BytesIO()
Image.new("RGBA", (2000, 1000), "red").save(made, "PNG")
objects["b", "a.png"] = made.getvalue()
push_all("b", "a.png")
push_all("b", "a.png")
assert jobs.drain() == 6
sizes = {
    key: Image.open(io.BytesIO(body)).size for (_, key), body in objects.items() if key != "a.png"
}
assert sizes == {f"thumbnails/{size}/a.png.jpg": (size, size // 2) for size in SIZES}
""",
    "reports": """
with database() as db:
    rows = [(1, "Europe/Berlin", None), (2, "America/New_York", None), (3, "Asia/Kathmandu", None)]
    db.executemany("INSERT INTO readers VALUES (?, ?, ?)", rows)
at = datetime(2026, 7, 1, 4, 15, tzinfo=timezone.utc)  # 6:15 in Berlin, 10:00 in Kathmandu
assert due(at) == [(1, "2026-07-01"), (3, "2026-07-01")]
report.perform_bulk(due(at) * 2)
assert jobs.drain(report) == 4
assert due(at) == []
assert due(at + timedelta(hours=6)) == [(2, "2026-07-01")]
winter = datetime(2026, 12, 1, 4, 15, tzinfo=timezone.utc)
assert (1, "2026-12-01") not in due(winter) and (1, "2026-12-01") in due(winter.replace(hour=5))
find_readers.perform_async()
jobs.drain()
assert due(datetime.now(timezone.utc)) == []
""",
    "outbox": """
[job] = jobs.enqueued(welcome)
with database() as db:
    assert not db.execute("SELECT * FROM outbox").fetchall()
configure, away = forkq.configure, True

def maybe():
    if away: raise forkq.ServerUnavailable("away")
    return configure()

forkq.configure = maybe
number = order("bob@example.com")
assert len(jobs) == 1, "Redis is away, and the order stands"
away = False
sweep_outbox.perform_async()
jobs.drain(sweep_outbox)
assert len(jobs.enqueued(welcome, args=[number])) == 1
jobs.drain()
""",
    "webhooks": """
import http.server, threading
answers, seen = [500, 200, 404], []

class Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        right = hmac.new(SECRET, body, hashlib.sha256).hexdigest() == self.headers["X-Signature"]
        seen.append((self.headers["X-Event-Id"], right))
        self.send_response(answers.pop(0))
        self.end_headers()
    def log_message(self, *_): ...

server = http.server.HTTPServer(("127.0.0.1", 0), Hook)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/"
first = notify.perform_async(url, "paid", {"order": 7})
jobs.perform_one()
assert 9 <= waits() <= 11
jobs.drain()
second = notify.perform_async(url, "paid", {"order": 8})
jobs.drain(check=False)
assert seen == [(first, True), (first, True), (second, True)]
assert [job.payload["error_class"] for job in jobs.dead] == ["recipes.Refused"]
server.shutdown()
server.server_close()
""",
    "progress-bar": """
jid = import_rows.perform_async(3)
assert jobs.drain() == 1
""",
}


def test_each_recipe_is_checked() -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} == set(CHECKS)


@pytest.mark.parametrize("name", CHECKS)
def test_a_recipe_does_what_it_promises(name: str, redis_server: Server, tmp_path: Path) -> None:
    # Else a push warns that nothing serves its queue.
    (tmp_path / "forkq.toml").write_text('[capsules.default]\nqueues = ["*"]\n')
    page = "\n\n".join(each.text for each in snippets(FOLDER / f"{name}.md", "python"))
    program = (
        "import logging, forkq.testing\n"
        "from forkq.current_job import CurrentJob\n"
        "logging.getLogger('forkq').setLevel(logging.CRITICAL)  # the failures are meant\n"
        "with forkq.testing.fake() as jobs:\n"
        "    names = {'__name__': 'recipes', 'jobs': jobs}\n"
        "    names['waits'] = lambda: jobs[0].at - jobs[0].payload['failed_at']\n"
        "    names['CurrentJob'] = CurrentJob\n"
        "    exec(PAGE, names)\n    exec(CHECK, names)\n"
    )
    run_program(f"PAGE, CHECK = {page!r}, {CHECKS[name]!r}\n{program}", tmp_path, redis_server)
