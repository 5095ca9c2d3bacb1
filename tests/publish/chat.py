"""A chat's webhook on loopback."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECRET = "T0000-B0000-s3cret"


class Chat:
    """Answers as told, the last one for good; `None` breaks the connection."""

    def __init__(self, *answers):
        self.answers, self.got, self.headers = list(answers) or [200], [], {}
        chat = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                chat.got.append((self.path, self.headers["Content-Type"], json.loads(body)))
                answer = chat.answers.pop(0) if len(chat.answers) > 1 else chat.answers[0]
                if answer is None:
                    return
                self.send_response(answer)
                for name, value in chat.headers.items():
                    self.send_header(name, value)
                echo = f"you asked {self.path}".encode()
                self.send_header("Content-Length", str(len(echo)))
                self.end_headers()
                self.wfile.write(echo)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/services/{SECRET}?key={SECRET}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
