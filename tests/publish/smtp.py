"""An SMTP server on loopback (RFC 5321, STARTTLS, AUTH PLAIN and LOGIN), with faults on demand."""

from __future__ import annotations

import base64
import socketserver
import ssl
import subprocess
import threading
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from pathlib import Path


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that nobody trusts by himself, and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    done = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-out", cert, "-keyout", key],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return cert, key


@dataclass
class Got:
    """A mail as it came; `secure`: encrypted, `user`: who had logged in."""

    sender: str
    to: list[str]
    text: str
    secure: bool
    user: str | None

    @property
    def message(self):
        return message_from_bytes(self.text.encode(), policy=policy.default)


@dataclass
class Post:
    """The server. `faults`: by the command (CONNECT, MAIL, RCPT, DATA, END), answers to give instead of
    doing it, one each time; `drop` closes the connection, `silent` says nothing."""

    files: tuple[Path, Path] | None = None
    from_the_start: bool = False  # TLS without STARTTLS
    users: dict[str, str] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    faults: dict[str, list[str]] = field(default_factory=dict)
    got: list[Got] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)

    def __enter__(self) -> Post:
        self.released = threading.Event()
        handler = type("Handler", (_Handler,), {"post": self})
        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()

    @property
    def port(self) -> int:
        return self.server.server_address[1]

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.files)
        return context


class _Gone(Exception):
    pass


class _Handler(socketserver.BaseRequestHandler):
    post: Post

    def handle(self) -> None:
        self.secure, self.user = False, None
        try:
            if self.post.from_the_start:
                self._encrypt()
            self.lines = self.request.makefile("rb")
            self._talk()
        except (_Gone, OSError):
            pass
        finally:
            if hasattr(self, "lines"):
                self.lines.close()
            self.request.close()

    def _encrypt(self) -> None:
        self.request = self.post.context().wrap_socket(self.request, server_side=True)
        self.secure = True

    def _say(self, text: str) -> None:
        self.request.sendall(text.encode() + b"\r\n")

    def _hear(self) -> str:
        line = self.lines.readline()
        if not line:
            raise _Gone
        return line.decode("utf-8", "replace").rstrip("\r\n")

    def _fault(self, command: str) -> bool:
        waiting = self.post.faults.get(command)
        if not waiting:
            return False
        answer = waiting.pop(0)
        if answer == "silent":
            self.post.released.wait(300)
        if answer in ("drop", "silent"):
            raise _Gone
        self._say(answer)
        return True

    def _talk(self) -> None:
        if self._fault("CONNECT"):
            return
        self._say("220 loopback")
        sender, to = "", []
        while True:
            line = self._hear()
            command = line.split(" ")[0].upper()
            self.post.commands.append(command)
            if command == "QUIT":
                self._fault("QUIT") or self._say("221 bye")
                return
            if command in ("MAIL", "RCPT", "DATA") and self._fault(command):
                continue
            if command == "EHLO":
                more = ["STARTTLS"] if self.post.files and not self.secure else []
                more += (
                    ["AUTH PLAIN LOGIN"] if self.post.users and (self.secure or not self.post.files) else []
                )
                for heard in ["loopback", *more]:
                    self._say(f"250-{heard}")
                self._say("250 8BITMIME")
            elif command == "STARTTLS":
                self._say("220 go")
                self._encrypt()
                self.lines.close()
                self.lines = self.request.makefile("rb")
            elif command == "AUTH":
                self._login(line.split(" "))
            elif command == "MAIL":
                sender, to = line.partition(":")[2].split()[0].strip("<>"), []
                self._say("250 ok")
            elif command == "RCPT":
                who = line.partition(":")[2].strip("<>")
                if who not in self.post.refused:
                    to.append(who)
                self._say("550 nobody here" if who in self.post.refused else "250 ok")
            elif command == "DATA":
                self._say("354 go on")
                lines = []
                while (heard := self._hear()) != ".":
                    lines.append(heard.removeprefix(".") if heard.startswith("..") else heard)
                if not self._fault("END"):
                    self.post.got.append(Got(sender, to, "\n".join([*lines, ""]), self.secure, self.user))
                    self._say("250 taken")
            else:
                self._say("250 ok")

    def _login(self, words: list[str]) -> None:
        if words[1].upper() == "PLAIN":
            _, user, password = base64.b64decode(words[2]).decode().split("\0")
        else:
            self._say("334 " + base64.b64encode(b"Username:").decode())
            user = base64.b64decode(self._hear()).decode()
            self._say("334 " + base64.b64encode(b"Password:").decode())
            password = base64.b64decode(self._hear()).decode()
        if self.post.users.get(user) == password:
            self.user = user
            self._say("235 welcome")
        else:
            self._say(f"535 wrong: {user} {password}")
